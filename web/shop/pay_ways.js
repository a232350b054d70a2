// Which ways to pay an order are offered here: those the order may be paid by, as far as they make sense on
// what the buyer holds in their hand.

/** What each device is good for, the best first. A phone cannot scan its own screen, unless all else fails. */
const FITTING = { desk: ["page", "qr", "phone"], phone: ["phone", "page", "qr"] };

/** A phone or a desk, and whose app the page is shown in. */
/** @param {{userAgent?: string, userAgentData?: {mobile: boolean}}} navigator */
export function deviceOf({ userAgent = "", userAgentData } = {}) {
  const phone = userAgentData?.mobile ?? /Mobi|Android|iPhone|iPad/.test(userAgent);
  const app = /MicroMessenger/.test(userAgent) ? "wechat" : null;
  return { kind: phone ? "phone" : "desk", app };
}

/**
 * One way for each provider, and a code beside a page where there is a screen to scan it from. Inside a
 * provider's own app its script is best, if we know who pays.
 */
export function waysToPay(payWith, { kind, app }, payer = null) {
  return payWith.flatMap(({ provider, methods = [] }) => {
    if (app === provider && payer && methods.includes("app")) return [{ provider, method: "app" }];
    const [best] = FITTING[kind].filter((method) => methods.includes(method));
    if (!best) return [];
    const codeToo = kind === "desk" && best !== "qr" && methods.includes("qr");
    return [{ provider, method: best }, ...(codeToo ? [{ provider, method: "qr" }] : [])];
  });
}

/** The provider's script inside WeChat. Resolves to "ok", "cancel" or "fail". */
export function payInsideApp(parameters, bridge = globalThis.WeixinJSBridge) {
  return new Promise((resolve) => {
    if (!bridge) return resolve("fail");
    bridge.invoke("getBrandWCPayRequest", parameters, ({ err_msg: told = "" } = {}) => {
      resolve(["ok", "cancel"].find((end) => told.endsWith(`:${end}`)) ?? "fail");
    });
  });
}

/** A payment address leads to a web page and nowhere else. */
export function webAddress(url, base) {
  try {
    const { protocol, href } = new URL(url, base);
    return protocol === "https:" || protocol === "http:" ? href : null;
  } catch {
    return null;
  }
}

/** How long a confirmation is waited for before the buyer is told what else may be the matter. */
export const CONFIRMED_WITHIN_MS = 60_000;

/** How an unpaid order's money stands: "none", "open", "waiting" for the provider's word, or "unsure". */
export function moneyState({ payment, returnedAt, now }) {
  if (returnedAt !== null && returnedAt !== undefined) {
    return now - returnedAt < CONFIRMED_WITHIN_MS ? "waiting" : "unsure";
  }
  return payment?.state === "open" ? "open" : "none";
}

/** The order whose buyer a provider has sent back to us, and the address without it. */
export function returnedOrder(href) {
  const url = new URL(href);
  const order = url.searchParams.get("order");
  if (!order || !/^SK\d+$/.test(order)) return null;
  return { order, clean: `${url.pathname}#orders` };
}
