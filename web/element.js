// Builds DOM without ever parsing HTML, so no name, detail or reason from the server can become markup.

/** @type {(id: string) => any} */
export const byId = (id) => document.getElementById(id);

/** `el("a", {class: "pill", href: "/", onclick: go}, "text", child)`; null children are left out. */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** Writes only what changed: screen readers announce, and browsers lay out, every write. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) {
    node.setAttribute(name, String(value));
  }
}

/** Puts children in this order and moves only those out of place, so that focus survives. */
export function setChildren(parent, children) {
  for (const old of [...parent.children]) {
    if (!children.includes(old)) old.remove();
  }
  children.forEach((child, i) => {
    if (parent.children[i] !== child) parent.insertBefore(child, parent.children[i] ?? null);
  });
}
