// Tables of thousands of rows: only those in view exist and are reused, and one draw happens per frame. A list's order is
// taken when page, filter, words or column are chosen; then values change in place and rows never jump.

import { $, attr, glyph, h, icon, set, sync } from "./dom.js";
import { num, t } from "./i18n.js";
import { model } from "./state.js";

const { max, min } = Math;

function windowed(box, head, make, fill) {
  const pad = h("div.pad");
  const rows = [];
  const rowHeight = () => parseFloat(getComputedStyle(box).getPropertyValue("--row"));
  let items = [];
  let cursor = -1;
  let asked = false;

  function draw() {
    asked = false;
    const height = rowHeight();
    const first = max(0, Math.floor(box.scrollTop / height) - 4);
    const need = Math.ceil(box.clientHeight / height) + 8;
    pad.style.height = items.length * height + "px";
    while (rows.length < need) {
      const row = make();
      row.id = "row" + rows.length;
      rows.push(row);
      pad.append(row);
    }
    rows.forEach((row, k) => place(row, first + ((((k - first) % rows.length) + rows.length) % rows.length), height));
  }

  function place(row, i, height) {
    row.hidden = !items[i];
    if (row.hidden) return;
    row.style.transform = `translateY(${i * height}px)`;
    row.item = items[i];
    attr(row, "aria-rowindex", i + 2).classList.toggle("on", i === cursor);
    if (i === cursor) attr(box, "aria-activedescendant", row.id);
    fill(row.children, items[i]);
  }

  const later = () => {
    if (!asked) requestAnimationFrame(draw);
    asked = true;
  };
  box.append(head, pad);
  box.addEventListener("scroll", later, { passive: true });
  const sizes = new ResizeObserver(later);
  sizes.observe(box);
  box.onfocus = () => {
    cursor = max(cursor, 0);
    later();
  };
  return {
    draw: later,
    current: () => items[cursor],
    show(list) {
      items = list;
      cursor = -1;
      attr(box, "aria-rowcount", list.length + 1);
      draw();
    },
    add(list) {
      items = items.concat(list);
      attr(box, "aria-rowcount", items.length + 1);
      later();
    },
    move(by) {
      const height = rowHeight();
      const room = box.clientHeight - head.offsetHeight;
      cursor = max(0, min(items.length - 1, cursor + by));
      box.scrollTop = max((cursor + 1) * height - room, min(box.scrollTop, cursor * height));
      box.focus({ preventScroll: true });
      draw();
    },
    end: () => sizes.disconnect(),
  };
}

export function search(label, value, type) {
  const told = { type: "search", value, placeholder: t(label), "aria-label": t(label), spellcheck: "false", autocomplete: "off" };
  const input = h("input", told, { oninput: (e) => type(e.target.value.toLowerCase()) });
  return h("label.search", icon("search"), input, h("kbd", "/"));
}

/** Filters as a row of buttons, each with its count: [key, count, glyph]. */
export function chips(list, current, choose, words) {
  const node = h("div.chips", { role: "group" });
  const make = ([key, , mark]) => h("button.chip", { onclick: () => choose(key) }, mark && glyph(mark), t(words(key)), h("span.n"));
  node.draw = () => sync(node, list(), (c) => c[0], make, (b, [key, count]) => {
    set(attr(b, "aria-pressed", current() === key).lastChild, num(count));
  });
  return node;
}

const KEEP = {};

/**
 * A page with a table. `all` gives the items now; a column is {cls, label, make, rank}, where `rank` makes it a choice to
 * sort by; a filter is {key, test, mark}.
 */
export function tablePage(main, page) {
  const keep = (KEEP[page.id] ||= { text: "", filter: page.filters[0].key, column: "", down: true, top: 0 });
  const box = h("div.table." + page.id, { role: "grid", tabindex: "0", "aria-label": t(page.title) });
  const count = h("span.count");
  const none = h("p.none", t("no_match"));
  const filterOf = (key) => page.filters.find((filter) => filter.key === key);
  const counts = () => page.filters.map(({ key, test, mark }) => [key, page.all().filter(test).length, mark]);
  const pills = chips(counts, () => keep.filter, (key) => ((keep.filter = key), choose()), (key) => filterOf(key).label);
  const field = search(page.hint, keep.text, (text) => ((keep.text = text), choose()));
  const list = windowed(box, h("div.head", { role: "row" }, page.columns.map(heading)), makeRow, page.fill);
  let shown = new Set();
  let whole = false;

  function heading({ cls, label, rank }) {
    if (!label) return h("div." + cls, { role: "columnheader" });
    const sort = () => {
      keep.down = keep.column === label ? !keep.down : true;
      keep.column = label;
      choose();
    };
    return h("div." + cls, { role: "columnheader", "data-label": label }, rank ? h("button", { tabindex: "-1", onclick: sort }, t(label)) : t(label));
  }

  function makeRow() {
    const cells = page.columns.map(({ cls, make }) => h("span." + cls, { role: "gridcell" }, make?.()));
    // A handler that answers false would cancel the link.
    const onclick = (e) => void (e.target.closest("a") || page.open(row.item));
    const row = h("div.row", { role: "row" }, cells, { onclick });
    return row;
  }

  const fits = (item) => filterOf(keep.filter).test(item) && page.text(item).includes(keep.text);

  function order() {
    const column = page.columns.find((c) => c.label === keep.column);
    const rank = column?.rank || page.rank;
    const sign = column && !keep.down ? -1 : 1;
    return (a, b) => {
      const [x, y] = [rank(a), rank(b)];
      if (x !== y) return sign * (typeof x === "string" ? (x < y ? -1 : 1) : y - x);
      return page.text(a) < page.text(b) ? -1 : 1;
    };
  }

  function choose() {
    whole = model.loaded;
    const found = page.all().filter(fits).sort(order());
    shown = new Set(found);
    box.scrollTop = 0;
    list.show(found);
    for (const head of box.firstChild.children) {
      const mine = keep.column && head.dataset.label === keep.column;
      attr(head, "aria-sort", !mine ? "none" : keep.down ? "descending" : "ascending");
    }
    tell();
    set($("say"), count.textContent);
  }

  function tell() {
    const all = page.all();
    set(count, t("x_of_y", num(all.filter(fits).length), num(all.length)));
    none.hidden = shown.size > 0;
    pills.draw();
  }

  main.append(h("div.bar1", h("h1", t(page.title)), field, pills, count), h("section.card.fill", box, none));
  const top = keep.top;
  choose();
  box.scrollTop = top;
  return {
    tick() {
      // The order of the first pages was taken before all were there.
      if (model.loaded && !whole) choose();
      const fresh = page.all().filter((item) => !shown.has(item) && fits(item));
      if (fresh.length) {
        if (!shown.size) return choose();
        fresh.forEach((item) => shown.add(item));
        list.add(fresh);
      }
      list.draw();
      tell();
      keep.top = box.scrollTop;
    },
    list,
    open: () => list.current() && page.open(list.current()),
    focus: () => field.children[1].focus(),
    end: list.end,
  };
}
