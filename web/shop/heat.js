// In which order items stand: the hottest first. Decided once, when a page first sees them, because nothing may
// move under a thumb.

import { percentOff } from "../money.js";

/** From 0 to 1 while there is something left: how much is gone, and before anything is, how good the offer is. */
export function heat({ stock, left, price, origin_price: origin }) {
  if (left <= 0) return -1;
  const gone = stock > 0 ? 1 - Math.min(left, stock) / stock : 0;
  return gone > 0 ? gone : percentOff(price, origin) / 1_000;
}

export class Places {
  #places = new Map();

  /** These, those seen before in their places, and new ones behind them in the order of `compare`. */
  inOrder(things, compare) {
    const fresh = things.filter(({ id }) => !this.#places.has(id)).sort(compare);
    for (const { id } of fresh) this.#places.set(id, this.#places.size);
    return [...things].sort((a, b) => this.#places.get(a.id) - this.#places.get(b.id));
  }
}

export const hottestFirst = (a, b) => heat(b) - heat(a) || a.id - b.id;
