// Who is at work: tickets grouped by program, host and process. Listings do not name sessions, because a session's name
// is nearly its secret; a process mostly has one.

import { glyph, h, lifeCell, nameEl, set } from "./dom.js";
import { dur, num, t } from "./i18n.js";
import { left, model, now } from "./state.js";
import { sheet, sheetTitle, dismiss } from "./sheets.js";
import { tablePage } from "./table.js";
import { ageOf, lifeTo, ownerOf, stateTo } from "./words.js";

const groups = new Map();

function fresh(ticket) {
  const [owner, host, pid] = [ownerOf(ticket), ticket.host, ticket.pid];
  return { key: ticket.who, owner, host, pid, foreign: ticket.foreign, text: `${owner} ${host} ${pid || ""}`.toLowerCase(), tickets: [] };
}

/** The groups of this moment. A group keeps its object, so that its row stays where it is. */
function gather() {
  for (const group of groups.values()) group.tickets = [];
  for (const line of model.lines.values()) {
    for (const ticket of line.holders) put(line, ticket);
    for (const ticket of line.waiters) put(line, ticket);
  }
  for (const group of groups.values()) {
    if (!group.tickets.length) groups.delete(group.key);
    else sum(group);
  }
  return [...groups.values()];
}

function put(line, ticket) {
  let group = groups.get(ticket.who);
  if (!group) groups.set(ticket.who, (group = fresh(ticket)));
  group.tickets.push({ line, ticket });
}

function sum(group) {
  const tickets = group.tickets.map((q) => q.ticket);
  group.holds = tickets.filter((q) => q.granted).length;
  group.waits = tickets.length - group.holds;
  group.since = Math.min(...tickets.slice(0, 1000).map((q) => q.entered));
  group.worst = tickets.reduce((a, b) => (b.ends < a.ends ? b : a));
  group.state = group.foreign ? "foreign"
    : tickets.some((q) => q.state === "expiring") ? "expiring"
    : tickets.some((q) => q.state === "jeopardy") ? "jeopardy"
    : group.holds ? "held" : "waiting";
}

const endangered = (group) => group.state === "expiring" || group.state === "jeopardy";

const COLUMNS = [
  { cls: "c", make: () => glyph("held") },
  { cls: "own", label: "owner", rank: (g) => g.owner.toLowerCase() },
  { cls: "at", label: "host", rank: (g) => g.host.toLowerCase() },
  { cls: "id.mono", label: "pid", rank: (g) => g.pid },
  { cls: "client", label: "its_locks" },
  { cls: "life", label: "time_to_live", make: lifeCell, rank: (g) => -left(g.worst) },
  { cls: "n.holds", label: "n_holds", rank: (g) => g.holds },
  { cls: "n.waits", label: "n_waits", rank: (g) => g.waits },
  { cls: "n.open", label: "since", rank: (g) => now() - g.since },
];

const FILTERS = [
  { key: "all", label: "all", test: () => true },
  { key: "holding", label: "holding", mark: "held", test: (g) => g.holds > 0 },
  { key: "waiting", label: "only_waiting", mark: "waiting", test: (g) => g.waits > 0 },
  { key: "jeopardy", label: "in_jeopardy", mark: "jeopardy", test: endangered },
  { key: "foreign", label: "foreign_tab", mark: "foreign", test: (g) => g.foreign },
];

function fill([mark, own, at, pid, locks, life, holds, waits, since], group) {
  if (!group.tickets.length) return;
  stateTo(mark.firstChild, group.state);
  set(own, group.owner).classList.toggle("s-foreign", group.foreign);
  set(at, group.host || "–");
  set(pid, group.pid ? String(group.pid) : "–");
  const first = group.tickets[0].line;
  if (locks.was !== first.name + group.tickets.length) {
    locks.was = first.name + group.tickets.length;
    locks.replaceChildren(nameEl(first.name), h("span.dim", group.tickets.length > 1 ? ` +${group.tickets.length - 1}` : ""));
  }
  lifeTo(life.firstChild, group.worst);
  set(holds, num(group.holds));
  set(waits, num(group.waits));
  set(since, dur(now() - group.since));
}

/** One owner's tickets, each a link to its lock; of one with a single ticket the lock itself. */
function open(group) {
  if (group.tickets.length === 1) {
    location.hash = "#/locks/" + encodeURIComponent(group.tickets[0].line.name);
    return;
  }
  const rows = group.tickets.slice(0, 200).map(({ line, ticket }) =>
    h("li", glyph(ticket.state), nameEl(line.name), h("span.dim", t(ticket.granted ? "holds" : "waits")), h("span.n", ageOf(ticket, ticket.got || ticket.entered))));
  const list = h("ul.mine", { onclick: (e) => e.target.closest("a") && document.getElementById("sheet").close() }, rows);
  sheet(sheetTitle(t("tickets_of", group.owner)), h("p.dim.mono", [group.host, group.pid && t("process", group.pid)].filter(Boolean).join(" · ")),
    list, group.tickets.length > 200 && h("p.dim", t("and_more", num(group.tickets.length - 200))), h("footer", dismiss("close")));
}

export function sessionsPage(main) {
  let list = gather();
  const view = tablePage(main, {
    id: "Sessions", title: "sessions", hint: "search_owners", columns: COLUMNS, filters: FILTERS, fill, open,
    all: () => list,
    text: (group) => group.text,
    rank: (group) => (endangered(group) ? 1e6 : 0) + group.holds + group.waits / 1e6,
  });
  main.querySelector(".count").title = t("sessions_note");
  let due = 0;
  return {
    ...view,
    tick(second) {
      if (second || Date.now() > due) {
        list = gather();
        due = Date.now() + 1000;
      }
      view.tick();
    },
  };
}
