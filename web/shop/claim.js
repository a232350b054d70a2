// One press of the buy button. A claim whose answer got lost may have been admitted, so it is asked
// again under the same Idempotency-Key until somebody answers; only a real answer ends it.

import { backoffMs, sleep } from "../backoff.js";

const TRIES_MAX = 4;

export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * `send(saleToken)` posts the claim; `tokens` gives sale tokens. Resolves to the 202 answer, throws a
 * `Problem`. A thrown problem with `unknown` set means: keep the key, ask again later.
 */
export async function claim({ itemId, tokens, send, sleep: rest = sleep, random = Math.random }) {
  let freshToken = false;
  for (let tries = 1; ; tries += 1) {
    try {
      return await send(await tokens.get(itemId));
    } catch (problem) {
      if (problem.code === "bad_token" && !freshToken) {
        freshToken = true;
        tokens.drop(itemId);
      } else if (problem.unknown && tries < TRIES_MAX) {
        await rest(backoffMs(tries - 1, random));
      } else {
        throw problem;
      }
    }
  }
}
