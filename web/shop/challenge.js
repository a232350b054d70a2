// Challenges: solved quietly before the opening, in the background of the page. The work is PBKDF2, which
// browsers do beside the page's own thread, so that nothing on it stands still meanwhile.

/** So many numbers are tried at once; more would only wait for each other. */
const TRIED_AT_ONCE = 32;

const bytesOf = (hex) => Uint8Array.from(hex.match(/../g) ?? [], (pair) => parseInt(pair, 16));
const hexOf = (bytes) => Array.from(new Uint8Array(bytes), (byte) => byte.toString(16).padStart(2, "0")).join("");

async function keyOf({ cost, keyLength, nonce, salt }, counter) {
  const password = new Uint8Array(nonce.length + 4);
  password.set(nonce);
  new DataView(password.buffer).setUint32(nonce.length, counter);
  const key = await crypto.subtle.importKey("raw", password, "PBKDF2", false, ["deriveBits"]);
  const how = { name: "PBKDF2", hash: "SHA-256", salt, iterations: cost };
  return hexOf(await crypto.subtle.deriveBits(how, key, keyLength * 8));
}

/** The solution as the server wants it. `progress` hears, from 0 to 1, how likely it would be found by now. */
export async function solved(challenge, progress = (_part) => {}) {
  const { parameters, signature } = challenge;
  const { keyPrefix } = parameters;
  const numbers = { ...parameters, nonce: bytesOf(parameters.nonce), salt: bytesOf(parameters.salt) };
  for (let from = 0; ; from += TRIED_AT_ONCE) {
    const counters = Array.from({ length: TRIED_AT_ONCE }, (_, n) => from + n);
    const keys = await Promise.all(counters.map((counter) => keyOf(numbers, counter)));
    const found = keys.findIndex((key) => key.startsWith(keyPrefix));
    if (found >= 0) {
      progress(1);
      const solution = { counter: from + found, derivedKey: keys[found] };
      return btoa(JSON.stringify({ challenge: { parameters, signature }, solution }));
    }
    progress(1 - Math.exp(-from / 16 ** keyPrefix.length));
  }
}

/**
 * What the server wants beside the wish for a sale token. `ask(method, path, options)` asks in the buyer's name;
 * `read(image)` resolves to the letters that the buyer reads, or to null if they cannot: then the machine works
 * longer instead.
 */
export async function solution({ ask, itemId, read = null, progress }) {
  const path = `/items/${itemId}/challenge`;
  if (read) {
    const challenge = await ask("POST", path);
    if (!challenge.codeChallenge) return { altcha: await solved(challenge, progress) };
    const [altcha, code] = await Promise.all([solved(challenge, progress), read(challenge.codeChallenge.image)]);
    if (code !== null) return { altcha, code };
  }
  return { altcha: await solved(await ask("POST", path, { body: { kind: "pow" } }), progress) };
}
