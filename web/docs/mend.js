// What Swagger UI leaves out for people who use a page by ear or by keyboard: buttons without a name,
// boxes that scroll and cannot be reached. It draws anew whenever something changes, so this looks again.

const NAMES = [[".copy-to-clipboard button, button.copy-to-clipboard", "Copy"], [".operation-filter-input", "Filter"]];
const SCROLLING = "pre, .table-container, .responses-inner, .highlight-code";

function look(root) {
  for (const [selector, name] of NAMES) {
    for (const node of root.querySelectorAll(`:is(${selector}):not([aria-label])`)) node.setAttribute("aria-label", name);
  }
  for (const node of root.querySelectorAll(`:is(${SCROLLING}):not([tabindex])`)) node.tabIndex = 0;
  // A field of a parameter is named by the row it stands in.
  for (const row of root.querySelectorAll("tr[data-param-name]")) {
    for (const field of row.querySelectorAll(":is(input, select, textarea):not([aria-label])")) {
      field.setAttribute("aria-label", row.dataset.paramName);
    }
  }
  for (const field of root.querySelectorAll(".body-param :is(select, textarea):not([aria-label])")) {
    field.setAttribute("aria-label", "Request body");
  }
}

/** Names and reaches what is in `root`, now and whenever it changes. */
export function mend(root) {
  let asked = false;
  const observer = new MutationObserver(() => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      look(root);
    });
  });
  observer.observe(root, { childList: true, subtree: true });
  look(root);
}
