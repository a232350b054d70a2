// Which address shows which view. `board.js` has the first; these are all others.

import { audit } from "./audit.js";
import { letters } from "./letters.js";
import { order } from "./order.js";
import { orders } from "./orders.js";
import { plan } from "./plan.js";
import { reconcile } from "./reconcile.js";
import { rehearse } from "./rehearse.js";
import { sale } from "./sale.js";
import { sales } from "./sales.js";
import { stockLog } from "./stock_log.js";
import { webhooks } from "./webhooks.js";

/**
 * [pattern of the address, the view, what is marked in the navigation].
 * @type {[string, (about: any) => any, string][]}
 */
export const VIEWS = [
  ["/sales", sales, "sales"],
  ["/sales/new", plan, "sales"],
  ["/sale/(\\d+)", sale, "sales"],
  ["/item/(\\d+)/stock-log", stockLog, "sales"],
  ["/orders", orders, "orders"],
  ["/order/([A-Za-z0-9]+)", order, "orders"],
  ["/dead-letters", letters, "letters"],
  ["/webhooks", webhooks, "webhooks"],
  ["/reconcile", reconcile, "reconcile"],
  ["/audit", audit, "audit"],
  ["/rehearse", rehearse, "rehearse"],
];
