// The buyer's orders as far as this page has heard, from four mouths (the claim's answer, the list,
// the poll, the event stream) that may speak out of order.

// How far an order has come. Moves only go up (see `OrderStatus::may_become` in the sale crate), so
// news of a lower rank is old news.
const RANK = { queued: 0, unpaid: 1, paid: 2, closed: 2, refunding: 3, refunded: 4, void: 5 };

/** The order owns its units. */
export const isLive = (status) => status === "queued" || status === "unpaid" || status === "paid";
/** The order may still change by itself. */
export const isMoving = (status) => status === "queued" || status === "unpaid" || status === "refunding";

const newestFirst = (a, b) =>
  b.order_no.length - a.order_no.length || (a.order_no < b.order_no ? 1 : a.order_no > b.order_no ? -1 : 0);

/** Some fields are lists and objects, which are never identical. */
const same = (a, b) => a === b || (typeof a === "object" && JSON.stringify(a) === JSON.stringify(b));

export class OrderBook {
  #orders = new Map();

  get(orderNo) {
    return this.#orders.get(orderNo);
  }

  clear() {
    this.#orders.clear();
  }

  /** Takes news of one order; false if it was old. */
  hear(news) {
    const known = this.#orders.get(news.order_no);
    if (!known) {
      this.#orders.set(news.order_no, { ...news });
      return true;
    }
    if ((RANK[news.status] ?? 0) < (RANK[known.status] ?? 0)) return false;
    const changed = Object.entries(news).some(([field, value]) => !same(known[field], value));
    if (changed) Object.assign(known, news);
    return changed;
  }

  /** Newest first; order numbers are time-ordered. */
  all() {
    return [...this.#orders.values()].sort(newestFirst);
  }

  /** As the buyer wants them: what still needs attention before what is settled. */
  shown() {
    const orders = this.all();
    return [...orders.filter((o) => isMoving(o.status)), ...orders.filter((o) => !isMoving(o.status))];
  }

  /** The order that makes the buyer an owner of this item, if there is one. */
  liveOf(itemId) {
    return this.all().find((order) => order.item_id === itemId && isLive(order.status)) ?? null;
  }

  moving() {
    return this.all().filter((order) => isMoving(order.status));
  }
}
