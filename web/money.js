// Money comes as an integer of minor units and a currency, and no floating point comes near it.

// ISO 4217's exceptions to two decimals. Intl has a table too, but it follows the habits of cash
// (it gives the Iraqi dinar none), while the server's minor units follow the standard.
/** @type {Map<string, number>} */
const DECIMALS = new Map(/** @type {[string, number][]} */ ([
  ..."BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF".split(" ").map((c) => [c, 0]),
  ..."BHD IQD JOD KWD LYD OMR TND".split(" ").map((c) => [c, 3]),
  ["CLF", 4], ["UYW", 4],
]));

export const decimalsOf = (currency) => DECIMALS.get(currency) ?? 2;

/** 699900 with 2 decimals is "6999.00"; a string, so that large amounts stay exact. */
export function decimalText(minor, decimals) {
  const digits = String(Math.abs(minor)).padStart(decimals + 1, "0");
  const sign = minor < 0 ? "-" : "";
  if (decimals === 0) return sign + digits;
  return `${sign}${digits.slice(0, -decimals)}.${digits.slice(-decimals)}`;
}

/** `short` drops ".00" from whole amounts, for prices in large type. */
export function formatMoney(minor, currency, locale, { short = false } = {}) {
  if (!Number.isSafeInteger(minor)) return "";
  const decimals = decimalsOf(currency);
  const text = decimalText(minor, decimals);
  const whole = short && minor % 10 ** decimals === 0;
  const shown = whole ? 0 : decimals;
  try {
    return new Intl.NumberFormat(locale, {
      style: "currency", currency, minimumFractionDigits: shown, maximumFractionDigits: shown,
    }).format(/** @type {any} */ (text));
  } catch {
    // Not a currency Intl can take: say plainly what the server said.
    return `${text} ${currency ?? ""}`.trim();
  }
}

/** Whole percents off, rounded down: an offer is never made to look better than it is. */
export function percentOff(price, origin) {
  if (!(origin > price) || price < 0) return 0;
  return Math.floor(((origin - price) / origin) * 100);
}
