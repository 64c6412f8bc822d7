// Building blocks of the page. Names, owners and labels reach it as text nodes, never as markup, and styles through
// the style object, never through an attribute, so that the strict Content-Security-Policy holds.

export const $ = (id) => document.getElementById(id);

const SVG = "http://www.w3.org/2000/svg";

/** h("div.card", {attribute}, child…): a string becomes a text node; "~path" makes SVG; on… becomes a listener. */
export function h(spec, ...rest) {
  const svg = spec[0] === "~";
  const [tag, ...classes] = spec.slice(svg ? 1 : 0).split(".");
  const node = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  if (classes.length) node.setAttribute("class", classes.join(" "));
  for (const part of rest.flat(Infinity)) {
    if (part == null || part === false || part === "") continue;
    if (part.constructor !== Object) node.append(part);
    else for (const key in part) give(node, key, part[key]);
  }
  return node;
}

function give(node, key, value) {
  if (key.startsWith("on")) node[key] = value;
  else if (value != null && value !== false) node.setAttribute(key, value === true ? "" : value);
}

/** Sets a text only if it is another one, so that selections and screen readers are left in peace. */
export function set(node, text) {
  if (node.textContent !== text) node.textContent = text;
  return node;
}

export function attr(node, key, value) {
  const text = String(value);
  if (node.getAttribute(key) !== text) node.setAttribute(key, text);
  return node;
}

/** Keyed children: focus, hover and transitions survive an update. */
export function sync(parent, items, key, make, fill) {
  const old = parent.kept || new Map();
  const kept = (parent.kept = new Map());
  items.forEach((item, i) => {
    const k = key(item);
    const node = old.get(k) || make(item);
    old.delete(k);
    kept.set(k, node);
    fill?.(node, item, i);
  });
  for (const node of old.values()) node.remove();
  let i = 0;
  for (const node of kept.values()) {
    if (parent.children[i] !== node) parent.insertBefore(node, parent.children[i] || null);
    i++;
  }
}

const disc = (r) => `M6 ${6 - r}a${r} ${r} 0 1 0 0 ${2 * r}a${r} ${r} 0 1 0 0-${2 * r}z`;

export const GLYPHS = {
  held: disc(4.5),
  waiting: disc(4.6) + disc(2.9),
  expiring: disc(5) + disc(3.7) + "M6 6V3a3 3 0 0 1 3 3z",
  jeopardy: "M6 1L11.6 11H.4zM5.3 4.4h1.4v3H5.3zM5.3 8.3h1.4v1.3H5.3z",
  foreign: "M6 .6L11.4 6 6 11.4.6 6z",
  free: disc(1.9),
  stale: "M1 5h2v2H1zM5 5h2v2H5zM9 5h2v2H9z",
  lost: "M2 1l4 4 4-4 1 1-4 4 4 4-1 1-4-4-4 4-1-1 4-4-4-4z",
  evicted: disc(5.2) + disc(3.8) + "M2.4 8.5l6.1-6.1 1.1 1.1-6.1 6.1z",
  expired: "M2 1h8L7 6l3 5H2l3-5z",
  released: disc(3.4) + disc(2.2),
  withdrawn: disc(3.4) + disc(2.2),
  changed: "M2 8.2V10h1.8L10 3.8 8.2 2z",
  ok: "M1.5 6.3L2.7 5l2.2 2.2 4.5-4.7 1.2 1.2-5.7 6z",
  none: "M2 5h8v1.6H2z",
};
GLYPHS.granted = GLYPHS.held;
GLYPHS.queued = GLYPHS.waiting;
GLYPHS.label = GLYPHS.changed;
GLYPHS.store_up = GLYPHS.ok;
GLYPHS.store_down = GLYPHS.jeopardy;
GLYPHS.reset = GLYPHS.stale;

export const path = (spec, d) => h("~path." + spec, { d });
export const svg = (spec, attributes, ...kids) => h("~svg." + spec, { "aria-hidden": "true", ...attributes }, kids);
export const icon = (name) => svg("x", {}, h("~use", { href: "#i-" + name }));
export const glyph = (kind) => setGlyph(svg("g", { viewBox: "0 0 12 12" }, h("~path", { "fill-rule": "evenodd" })), kind);

export function setGlyph(node, kind) {
  attr(node, "class", "g s-" + kind);
  attr(node.firstChild, "d", GLYPHS[kind] || GLYPHS.free);
  return node;
}

export const hrefOf = (name) => "#/locks/" + encodeURIComponent(name);

/** Shows a lock's name exactly: its last part gives way to the ellipsis last, and spaces at its end are visible. */
export function nameTo(node, name) {
  if (node.shown === name) return node;
  node.shown = node.title = name;
  if (node.localName === "a") node.href = hrefOf(name);
  const cut = name.lastIndexOf("/", name.length - 2) + 1;
  const end = name.trimEnd();
  const dir = name.slice(0, cut);
  node.replaceChildren(h("span.dir", dir), h("span", end.slice(cut)), h("span.ws", "␣".repeat(name.length - end.length)));
  return node;
}

export const nameEl = (name, tag = "a") => nameTo(h(tag + ".name"), name);

export const bar = () => h("span.bar", h("i"));
export const lifeCell = () => h("div.ttl", bar(), h("span"));

export function barTo(node, state, part) {
  const width = Math.max(0, Math.min(1, part)).toFixed(3);
  attr(node, "class", "bar s-" + state).firstChild.style.transform = `scaleX(${width})`;
}

export const card = (spec, title, side, ...kids) => h("section.card" + spec, h("header", h("h2", title), side), kids);
export const fact = (label, dd) => h("div", h("dt", label), dd);

/** A curve over the samples, from the first to the last. */
export function spark(spec) {
  const shape = { viewBox: "0 0 100 30", preserveAspectRatio: "none" };
  const node = svg("spark." + spec, shape, path("area", ""), path("stroke", ""));
  node.draw = (values) => {
    if (values.length < 2) return;
    const high = Math.max(...values);
    const low = Math.min(...values);
    const half = Math.max((high - low) / 2, high * 0.02, 1e-6);
    const y = (value) => (15 - ((value - (high + low) / 2) / half) * 11).toFixed(1);
    const d = values.map((value, i) => `${((100 * i) / (values.length - 1)).toFixed(1)} ${y(value)}`).join("L");
    attr(node.firstChild, "d", `M0 30L${d}L100 30z`);
    attr(node.lastChild, "d", "M" + d);
  };
  return node;
}

// The line in miniature, on a logarithmic scale: 10, 100 and 1,000 waiters fit and compare.
export const reach = (i, width, scale = 6, most = 1e3) => (width * Math.log(1 + i / scale)) / Math.log(1 + most / scale);

export function mini(width) {
  const shape = path("chamber", "M1 4h13l-4 6 4 6H1z");
  const node = svg("mini", { width, height: 20 }, shape, path("tick", ""), path("tick.s-foreign", ""));
  node.draw = (line, state) => {
    const d = ["", ""];
    let last = 0;
    for (let i = 0; i < line.waiters.length; i++) {
      const x = 21 + reach(i, width - 24);
      if (x > width) break;
      if (x - last < 3.5) continue;
      const tall = 13 * (0.4 + 0.6 / (1 + i / 25));
      last = x;
      d[line.waiters[i].foreign ? 1 : 0] += `M${x.toFixed(1)} ${(10 - tall / 2).toFixed(1)}v${tall.toFixed(1)}`;
    }
    attr(node.firstChild, "class", "chamber s-" + state);
    d.forEach((text, i) => attr(node.children[i + 1], "d", text));
  };
  return node;
}
