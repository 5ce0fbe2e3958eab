// Compiles MiniUSDC.sol to MiniUSDC.json and OwnedWallet.json, next to it: the ABI, the
// bytecode that creates the contract, and the runtime bytecode that genesis blocks have.
// With --check it compares instead of writing, and fails if a file differs.
//
//   npm install && npm run build            (or: npm run build -- --check)
//
// The compiler is pinned in package.json and leaves no hash of the source's path in the
// bytecode, so the same source gives the same bytes on every machine.
import fs from 'node:fs';
import solc from 'solc';

const source = fs.readFileSync(new URL('MiniUSDC.sol', import.meta.url), 'utf8');
const output = JSON.parse(solc.compile(JSON.stringify({
  language: 'Solidity',
  sources: { 'MiniUSDC.sol': { content: source } },
  settings: {
    optimizer: { enabled: true, runs: 200 },
    viaIR: true,
    evmVersion: 'paris', // no instruction that an EVM chain of today lacks
    metadata: { bytecodeHash: 'none' },
    outputSelection: { '*': { '*': ['abi', 'evm.bytecode.object', 'evm.deployedBytecode.object'] } },
  },
})));
const faults = (output.errors ?? []).filter((e) => e.severity !== 'info');
if (faults.length > 0) {
  console.error(faults.map((e) => e.formattedMessage).join('\n'));
  process.exit(1);
}
for (const name of ['MiniUSDC', 'OwnedWallet']) {
  const c = output.contracts['MiniUSDC.sol'][name];
  const text = JSON.stringify({
    compiler: solc.version(),
    abi: c.abi,
    bytecode: '0x' + c.evm.bytecode.object,
    runtime: '0x' + c.evm.deployedBytecode.object,
  }, null, 1) + '\n';
  const file = new URL(name + '.json', import.meta.url);
  if (process.argv.includes('--check')) {
    if (fs.readFileSync(file, 'utf8') !== text) {
      console.error(`${name}.json differs from what the source compiles to`);
      process.exitCode = 1;
    }
  } else {
    fs.writeFileSync(file, text);
  }
  console.log(name, c.evm.deployedBytecode.object.length / 2, 'bytes');
}
