// The official servers. node server.mjs v1|v2: sells GET /paid for one cent with the
// facilitator FACILITATOR_URL. Prints its port.
import express from 'express';
import { paymentMiddleware as middlewareV1 } from 'x402-express';
import { paymentMiddleware as middlewareV2 } from '@x402/express';
import { x402ResourceServer, HTTPFacilitatorClient } from '@x402/core/server';
import { ExactEvmScheme } from '@x402/evm/exact/server';

const payTo = process.env.PAY_TO, url = process.env.FACILITATOR_URL;
const app = express();
if (process.argv[2] === 'v1') {
  app.use(middlewareV1(payTo, { 'GET /paid': { price: '$0.01', network: 'base-sepolia', config: { description: 'one cent' } } }, { url }));
} else {
  const server = new x402ResourceServer(new HTTPFacilitatorClient({ url })).register('eip155:*', new ExactEvmScheme());
  app.use(middlewareV2({
    'GET /paid': { accepts: { scheme: 'exact', price: '$0.01', network: 'eip155:84532', payTo, maxTimeoutSeconds: 60 }, description: 'one cent', mimeType: 'application/json' },
  }, server));
}
let runs = 0;
app.get('/paid', (req, res) => res.json({ secret: ++runs }));
const listener = app.listen(0, '127.0.0.1', () => console.log(listener.address().port));
