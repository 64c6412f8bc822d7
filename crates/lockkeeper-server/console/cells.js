// Cells: the small values that only a lock's holder writes. The service does not list them; a name is typed in or comes
// from a lock's page.

import { api, pause } from "./api.js";
import { h, icon, nameEl, nameTo, set, fact, sync } from "./dom.js";
import { clock, num, t } from "./i18n.js";
import { model } from "./state.js";

const PACE = 2000;
const MOST_SHOWN = 65_536;
const seen = new Map();

/** The value as text if it is UTF-8 without control characters, else in hexadecimal, sixteen bytes a line. */
export function readable(bytes) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (!/[\u0000-\u0008\u000e-\u001f\u007f]/.test(text)) return { text, binary: false };
  } catch {
    // Not UTF-8.
  }
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const part = [...bytes.subarray(at, at + 16)];
    const hex = part.map((b) => b.toString(16).padStart(2, "0")).join(" ");
    const plain = part.map((b) => (b >= 32 && b < 127 ? String.fromCharCode(b) : "·")).join("");
    lines.push(`${at.toString(16).padStart(4, "0")}  ${hex.padEnd(47)}  ${plain}`);
  }
  return { text: lines.join("\n"), binary: true };
}

function whenWritten(name, cell) {
  const holder = model.lines.get(name)?.holders[0];
  if (!cell.fence || !holder?.fence) return "";
  return t(holder.fence === cell.fence ? "cell_present" : "cell_past");
}

export function cellsPage(main, name) {
  const stop = new AbortController();
  const input = h("input.mono", { type: "search", value: name || "", placeholder: t("cell_name"), "aria-label": t("cell_name"), spellcheck: "false", autocomplete: "off" });
  const go = (e) => {
    e.preventDefault();
    if (input.value) location.hash = "#/cells/" + encodeURIComponent(input.value);
  };
  const form = h("form.bar1", { onsubmit: go }, h("h1", t("cells")), h("label.search", icon("search"), input), h("button.primary", { type: "submit" }, t("cell_read")));
  const list = h("ol.visited");
  const body = h("div.cell");
  const head = h("header");
  main.append(form, h("div.grid.cellgrid", h("section.card.value", head, body), h("section.card.seen", h("header", h("h2", t("cells_seen"))), list)));

  function drawSeen() {
    if (!seen.size) return list.replaceChildren(h("li.dim", t("cells_none_seen")));
    const rows = [...seen].reverse();
    const make = ([key]) => h("li", h("a.name", { href: "#/cells/" + encodeURIComponent(key) }), h("time"));
    if (!list.kept) list.replaceChildren();
    sync(list, rows, (row) => row[0], make, (node, [key, at]) => {
      if (!node.firstChild.shown) nameTo(node.firstChild, key);
      node.firstChild.href = "#/cells/" + encodeURIComponent(key);
      set(node.lastChild, clock(at));
    });
  }

  let was = "";
  function show(cell) {
    const key = cell ? cell.tag + cell.fence + cell.bytes.length + whenWritten(name, cell) : "none";
    if (key === was) return;
    was = key;
    head.replaceChildren(h("h2", nameEl(name, "bdi")), h("a", { href: "#/locks/" + encodeURIComponent(name) }, t("lock")));
    if (!cell) return body.replaceChildren(h("p.dim", t("cell_none")));
    const { text, binary } = readable(cell.bytes.subarray(0, MOST_SHOWN));
    body.replaceChildren(
      h("dl.facts", fact(t("cell_size"), h("dd", t("cell_bytes", num(cell.bytes.length)))), cell.fence && fact(t("cell_fence"), h("dd.mono", num(cell.fence))),
        fact(t("cell_version"), h("dd.mono", cell.tag || "–"))),
      ...[whenWritten(name, cell), binary && t("cell_binary")].filter(Boolean).map((words) => h("p.dim", words)),
      cell.bytes.length ? h("pre.mono", { tabindex: "0" }, text) : h("p.dim", t("cell_empty")));
  }

  async function watch() {
    while (!stop.signal.aborted) {
      try {
        const cell = await api.cell(name, stop.signal);
        seen.delete(name);
        seen.set(name, Date.now());
        show(cell);
        drawSeen();
      } catch (error) {
        if (stop.signal.aborted) return;
        if (error.status === 403) {
          was = "";
          head.replaceChildren(h("h2", nameEl(name, "bdi")));
          body.replaceChildren(h("p.s-lost", t("refused", error.message)));
          return;
        }
      }
      await pause(PACE, stop.signal);
    }
  }

  drawSeen();
  if (name) watch();
  else body.append(h("p.dim.intro", t("cell_intro")));
  return { tick: () => {}, focus: () => input.focus(), end: () => stop.abort(), back: name ? "#/cells" : undefined };
}
