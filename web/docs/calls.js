// The three calls as curl, ready to paste into a shell.

/** A word of a shell command: in single quotes it means nothing but itself. */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/**
 * What to type: with what is known already, and a name in capitals for what is not.
 * Each line but the last ends with a backslash, so that a phone shows it whole.
 * @param {{ origin: string, item?: number | string, bearer?: string, saleToken?: string, key?: string, orderNo?: string }} about
 */
export function calls({ origin, item = "ITEM", bearer = "YOUR_JWT", saleToken = "SALE_TOKEN", key = "KEY", orderNo = "ORDER_NO" }) {
  const curl = (...parts) => ["curl -sS", ...parts].join(" \\\n  ");
  const at = (path) => quoted(`${origin}/api/v1${path}`);
  const header = (name, value) => `-H ${quoted(`${name}: ${value}`)}`;
  return [
    { name: "token", command: curl(`-X POST ${at(`/items/${item}/token`)}`, header("Authorization", `Bearer ${bearer}`)) },
    {
      name: "claim",
      command: curl(`-X POST ${at(`/items/${item}/claims`)}`, header("X-Sale-Token", saleToken),
        header("Idempotency-Key", key), `--json ${quoted('{"quantity":1}')}`),
    },
    { name: "order", command: curl(at(`/orders/${orderNo}`), header("Authorization", `Bearer ${bearer}`)) },
  ];
}

/** What can be tried first: open rather than waiting, without a challenge, with the most left. */
export function itemToTry(activities) {
  const states = ["open", "waiting"];
  return activities.flatMap(({ items }) => items)
    .filter(({ state, challenge, left }) => states.includes(state) && challenge === "off" && left !== 0)
    .sort((a, b) => states.indexOf(a.state) - states.indexOf(b.state) || a.opens_at - b.opens_at || b.left - a.left)[0] ?? null;
}

/**
 * The document with what is known filled in, so that an operation can be tried as it stands.
 * @param {any} doc
 * @param {{ item?: number }} known
 */
export function filledIn(doc, { item }) {
  const filled = structuredClone(doc);
  for (const [path, operations] of Object.entries(filled.paths ?? {})) {
    if (!path.startsWith("/api/v1/items/{id}")) continue;
    for (const { parameters = [] } of Object.values(operations)) {
      for (const parameter of parameters) {
        if (parameter.in === "path" && parameter.name === "id") parameter.example = item;
      }
    }
  }
  return filled;
}
