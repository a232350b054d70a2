// Asking for a sale token: a sale with a challenge gives it only to whoever has solved one.

const SOLVE_TRIES_MAX = 3;

/**
 * A sale token. `ask(method, path, options)` asks in the buyer's name; `kind` is what the item says of its
 * challenge; `solve({ ask, itemId })` resolves to what has to be sent along if there is one.
 */
export async function saleToken({ ask, itemId, kind = "off", solve }) {
  let wanted = kind;
  for (let tries = 1; ; tries += 1) {
    try {
      const body = wanted === "off" ? undefined : await solve({ ask, itemId });
      return await ask("POST", `/items/${itemId}/token`, { body });
    } catch (problem) {
      if (problem.code !== "bad_challenge" || tries >= SOLVE_TRIES_MAX) throw problem;
      // What the page knew of the sale is a moment old, or somebody read a letter wrongly.
      wanted = problem.body.challenge;
    }
  }
}
