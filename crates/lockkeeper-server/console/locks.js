// All locks: search, filters, and a table that stays fluid with ten thousand rows.

import { glyph, h, hrefOf, lifeCell, mini, nameTo, set } from "./dom.js";
import { dur, fence as shortFence, num, t } from "./i18n.js";
import { inDanger, inUse, left, lineState, model, now, soonest } from "./state.js";
import { tablePage } from "./table.js";
import { ageOf, holderOf, lifeTo, modeOf, stateTo } from "./words.js";

const fenceRank = (line) => Number(line.holders[0]?.fence || -1);
const heldRank = (line) => (line.holders[0] ? now() - line.holders[0].got : -1);
const lifeRank = (line) => (line.holders.length ? -left(soonest(line)) : -Infinity);

const COLUMNS = [
  { cls: "c", make: () => glyph("held") },
  { cls: "name", label: "name", make: () => h("a.name", { tabindex: "-1" }), rank: (line) => line.low },
  { cls: "mode", label: "mode", rank: modeOf },
  { cls: "by", label: "holder", rank: (line) => holderOf(line).toLowerCase() },
  { cls: "fence.n", label: "fence", rank: fenceRank },
  { cls: "held.n", label: "held_for", rank: heldRank },
  { cls: "life", label: "time_to_live", make: lifeCell, rank: lifeRank },
  { cls: "line", label: "line", make: () => [mini(104), h("b")], rank: (line) => line.waiters.length },
];

const FILTERS = [
  { key: "all", label: "all", test: () => true },
  { key: "held", label: "held", mark: "held", test: (line) => line.holders.length > 0 },
  { key: "contended", label: "contended", mark: "waiting", test: (line) => line.waiters.length > 0 },
  { key: "expiring", label: "expiring_tab", mark: "expiring", test: inDanger },
];

function fill([mark, name, mode, by, fence, held, life, picture], line) {
  const state = lineState(line);
  const first = line.holders[0];
  stateTo(mark.firstChild, state);
  nameTo(name.firstChild, line.name);
  set(mode, modeOf(line));
  set(by, holderOf(line)).classList.toggle("s-foreign", !!first?.foreign);
  set(fence, first?.fence ? shortFence(first.fence) : "–").title = first?.fence || "";
  set(held, first ? ageOf(first, first.got) : "–");
  lifeTo(life.firstChild, soonest(line));
  picture.firstChild.draw(line, state);
  set(picture.lastChild, line.waiters.length ? num(line.waiters.length) : "");
  picture.title = line.waiters.length ? `${t("oldest_wait")} ${dur(now() - line.waiters[0].entered)}` : "";
}

export function locksPage(main) {
  const view = tablePage(main, {
    id: "Locks", title: "locks", hint: "search_names", columns: COLUMNS, filters: FILTERS, fill,
    all: () => [...model.lines.values()],
    text: (line) => line.low,
    rank: (line) => line.waiters.length + (inUse(line) ? 0.5 : 0),
    open: (line) => (location.hash = hrefOf(line.name)),
  });
  return { ...view, empty: () => model.loaded && model.conn === "live" && !model.lines.size };
}
