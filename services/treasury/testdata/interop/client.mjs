// The official clients. node client.mjs v1|v2 URL [TIMES]: pays for URL once and then sends
// the same payment TIMES times at the same time. Prints one line of JSON.
import { wrapFetchWithPayment as wrapV1 } from 'x402-fetch';
import { wrapFetchWithPayment as wrapV2, x402Client } from '@x402/fetch';
import { ExactEvmScheme } from '@x402/evm/exact/client';
import { toClientEvmSigner } from '@x402/evm';
import { createPublicClient, createWalletClient, http, publicActions } from 'viem';
import { privateKeyToAccount } from 'viem/accounts';
import { baseSepolia } from 'viem/chains';

const [version, url, times] = process.argv.slice(2);
const account = privateKeyToAccount(process.env.CLIENT_KEY);
const transport = http(process.env.RPC_URL);
let header;
const spy = async (input, init) => {
  const req = new Request(input, init);
  for (const name of ['payment-signature', 'x-payment']) {
    if (req.headers.get(name)) header = [name, req.headers.get(name)];
  }
  if (header && Number(times)) return new Response('{}', { status: 200 }); // the payment is sent below
  return fetch(req);
};
let pay;
if (version === 'v1') {
  pay = wrapV1(spy, createWalletClient({ account, chain: baseSepolia, transport }).extend(publicActions), 100000n);
} else {
  const chain = createPublicClient({ chain: baseSepolia, transport });
  pay = wrapV2(spy, new x402Client().register('eip155:*', new ExactEvmScheme(toClientEvmSigner(account, chain))));
}
const first = await pay(url);
const result = { status: first.status, body: await first.text(), header: header?.[0] };
const receipt = first.headers.get('payment-response') || first.headers.get('x-payment-response');
if (receipt) result.receipt = JSON.parse(Buffer.from(receipt, 'base64').toString());
if (Number(times)) {
  const all = await Promise.all(Array.from({ length: Number(times) }, () => fetch(url, { headers: { [header[0]]: header[1] } })));
  result.statuses = all.map(r => r.status);
  result.replayed = all.filter(r => r.headers.get('idempotent-replayed')).length;
}
console.log(JSON.stringify(result));
