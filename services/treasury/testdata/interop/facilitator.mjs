// The official facilitator, for both versions. Prints its port.
import express from 'express';
import { x402Facilitator } from '@x402/core/facilitator';
import { toFacilitatorEvmSigner } from '@x402/evm';
import { ExactEvmScheme } from '@x402/evm/exact/facilitator';
import { ExactEvmSchemeV1 } from '@x402/evm/exact/v1/facilitator';
import { createWalletClient, http, publicActions } from 'viem';
import { privateKeyToAccount } from 'viem/accounts';
import { baseSepolia } from 'viem/chains';

const account = privateKeyToAccount(process.env.FACILITATOR_KEY);
const wallet = createWalletClient({ account, chain: baseSepolia, transport: http(process.env.RPC_URL), pollingInterval: 50 }).extend(publicActions);
const signer = toFacilitatorEvmSigner({
  address: account.address,
  readContract: a => wallet.readContract({ ...a, args: a.args || [] }),
  verifyTypedData: a => wallet.verifyTypedData(a),
  writeContract: a => wallet.writeContract({ ...a, args: a.args || [] }),
  sendTransaction: a => wallet.sendTransaction(a),
  waitForTransactionReceipt: a => wallet.waitForTransactionReceipt(a),
  getCode: a => wallet.getCode(a),
});
const facilitator = new x402Facilitator().register('eip155:84532', new ExactEvmScheme(signer)).registerV1(['base-sepolia'], new ExactEvmSchemeV1(signer));
const app = express();
app.use(express.json());
for (const op of ['verify', 'settle']) {
  app.post('/' + op, async (req, res) => {
    try {
      res.json(await facilitator[op](req.body.paymentPayload, req.body.paymentRequirements));
    } catch (e) {
      res.status(500).json({ error: e.message });
    }
  });
}
app.get('/supported', (req, res) => res.json(facilitator.getSupported()));
const listener = app.listen(0, '127.0.0.1', () => console.log(listener.address().port));
