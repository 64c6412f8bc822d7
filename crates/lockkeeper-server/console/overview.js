// The first page: four figures, the most contended locks, the store with its promises, the latest events. Made to be
// read from across a room.

import { attr, card, fact, glyph, h, mini, nameEl, nameTo, set, setGlyph, spark, sync } from "./dom.js";
import { dur, num, parts, t } from "./i18n.js";
import { inUse, lineState, model, now } from "./state.js";
import { eventList, holderOf } from "./words.js";

/** A large figure with small units; replaced only when it is another one. */
function figure(node, list) {
  const text = list.join();
  if (node.was === text) return;
  node.was = text;
  node.replaceChildren(...list.flatMap(([value, unit]) => [String(value), h("small", unit)]));
}

/** Before the first answer there is nothing to count. */
const known = () => model.loaded || model.lines.size > 0;

const TILES = [
  ["held", "held", "held", (n, s) => set(n, known() ? num(s.held) : "–"), (n, s) => set(n, known() ? t("of_names", num(s.names)) : "")],
  ["waiting", "waiting", "waiting", (n, s) => set(n, known() ? num(s.waiting) : "–"),
    (n, s) => set(n, s.lines ? t("in_lines", num(s.lines)) : known() ? t("no_waiters") : "")],
  ["longest_wait", "longest", "waiting",
    (n, s) => (s.oldest ? figure(n, parts(now() - s.oldest.waiters[0].entered)) : figure(n, [["–", ""]])), longestNote],
  ["grants", "rate", "held", (n, s) => figure(n, [known() ? [s.rate.toFixed(s.rate < 100 ? 1 : 0), t("per_second")] : ["–", ""]]),
    (n, s) => set(n, model.grants.length ? t("waited_note", dur(s.half), dur(s.most)) : t("last_minute"))],
];

function longestNote(node, stat) {
  if (!stat.oldest) return node.replaceChildren();
  const link = node.firstElementChild || node.appendChild(h("a.name"));
  nameTo(link, stat.oldest.name);
}

function tile([label, key, cls, value, note]) {
  const node = h("section.card.tile", h("h2", t(label)), h("p.big"), h("p.note"), spark("s-" + cls));
  node.dataset.tile = key;
  node.draw = () => {
    const stat = model.stat;
    if (stat.oldest && !stat.oldest.waiters.length) stat.oldest = null;
    value(node.children[1], stat);
    note(node.children[2], stat);
    node.lastChild.draw(model.series[key]);
  };
  return node;
}

const promise = (title, text, mark = "ok") => h("li", glyph(mark), h("p", h("b", title), h("span.dim", text)));

function promisesOf(can) {
  const missing = [["shared", "readers"], ["permits", "permits"], ["cells", "cells"]].filter(([key]) => !can[key]);
  const kinds = missing.length ? t("kinds_some", missing.map(([, word]) => t(word)).join(", ")) : t("kinds_all");
  return [
    can.fair ? promise(t("fair"), t("fair_text")) : promise(t("fair"), t("unfair_text"), "none"),
    can.fenced ? promise(t("fenced"), t("fenced_text")) : promise(t("fenced"), t("unfenced_text"), "none"),
    can.survives_failover ? promise(t("survives"), t("survives_text"))
      : can.durable ? promise(t("durable"), t("durable_text")) : promise(t("durable"), t("volatile_text"), "none"),
    promise(t("kinds"), kinds, missing.length === 3 ? "none" : "ok"),
    promise(t("shared_sessions"), can.sessions_shared ? t("shared_text") : t("owned_text"), can.sessions_shared ? "ok" : "none"),
    promise(t("not_promised"), t("not_promised_text"), "none"),
  ];
}

const TITLES = { sqlite: "SQLite", memory: "Memory", postgres: "PostgreSQL", postgresql: "PostgreSQL", mysql: "MySQL", mariadb: "MariaDB",
  redis: "Redis", redlock: "Redlock", etcd: "etcd", zookeeper: "ZooKeeper" };

function storeCard() {
  const health = h("b.who", glyph("stale"), h("span"));
  const name = h("p.title");
  const where = h("p.mono.dim");
  const rows = h("ul.members");
  const [answer, open, risk] = [h("dd"), h("dd"), h("dd")];
  const curve = spark("s-waiting");
  const promises = h("ul.promises");
  const facts = h("dl.facts", fact(t("answer_time"), answer), fact(t("sessions"), open), fact(t("in_jeopardy"), risk));
  const node = card(".store", t("store"), health, h("div", name, where), rows, facts, curve, h("h2", t("promises")), promises);
  let was;
  node.draw = () => {
    const store = model.store;
    const [mark, word] = { live: ["held", "healthy"], store: ["jeopardy", "store_down"] }[model.conn] || ["stale", "unknown"];
    setGlyph(health.firstChild, mark);
    set(health.lastChild, t(word));
    set(open, num(model.stat.owners ?? 0));
    set(risk, num(model.stat.jeopardy)).className = model.stat.jeopardy ? "s-jeopardy" : "";
    const took = model.series.answer.at(-1);
    if (took !== undefined) figure(answer, [[took < 10 ? took.toFixed(1) : Math.round(took), "ms"]]);
    curve.draw(model.series.answer);
    const fresh = !model.eventsFlow ? t("fresh_asked") : store?.events?.within_ms ? t("fresh_within", dur(store.events.within_ms)) : t("fresh_here");
    const text = JSON.stringify([store?.store, store?.instance, store?.not_shown, fresh, model.storeHidden, model.notShown, model.conn]);
    if (text === was) return;
    was = text;
    const scheme = store?.scheme || "";
    set(name, store ? TITLES[scheme] || scheme : model.storeHidden ? t("store_hidden") : "–");
    set(where, location.host);
    const hidden = store?.not_shown || model.notShown;
    rows.replaceChildren(...[
      store && [t("service", store.version), `${t("instance")} ${store.instance.slice(0, 8)}`, model.conn === "live" ? "held" : "stale"],
      store && [t("identity"), store.store, "held"],
      [t("event_stream"), fresh, model.eventsFlow ? "held" : "stale"],
      hidden && [t("not_shown"), hidden, "none"],
    ].filter(Boolean).map(([a, b, k]) => h("li", glyph(k), h("span", a), h("span.dim.n", { title: b }, b))));
    promises.replaceChildren(...(store ? promisesOf(store.capabilities) : []));
  };
  return node;
}

const contention = (a, b) => b.waiters.length - a.waiters.length || (a.name < b.name ? -1 : 1);

function drawContended(rows, none) {
  const top = [...model.lines.values()].filter((line) => line.waiters.length).sort(contention).slice(0, 8);
  none.hidden = top.length > 0 || !known();
  const make = (line) => h("li", nameEl(line.name), h("span.who", glyph("held"), h("span.own")), mini(300), h("b.n"), h("span.n"));
  sync(rows, top, (line) => line.name, make, (node, line) => {
    const [, who, picture, count, wait] = node.children;
    const state = lineState(line);
    setGlyph(who.firstChild, state);
    who.title = t("s_" + state);
    set(who.lastChild, holderOf(line));
    picture.draw(line, state);
    set(count, num(line.waiters.length));
    set(wait, dur(now() - line.waiters[0].entered));
  });
}

export function overviewPage(main) {
  const tiles = TILES.map(tile);
  const rows = h("ol.contended");
  const none = h("p.quiet.dim", t("no_contention"));
  const recent = h("ol.latest");
  const silent = h("p.quiet.dim", t("no_recent"));
  const store = storeCard();
  const columns = h("p.cols", ["name", "holder", "line", "waiting", "oldest_wait"].map((key) => h("span", t(key))));
  main.append(h("div.grid.overview", h("h1.sr", t("overview")), tiles,
    card(".most", t("most_contended"), h("a", { href: "#/locks" }, t("all_locks")), columns, rows, none),
    store,
    card(".recent", t("recent_events"), h("a", { href: "#/events" }, t("all_events")), recent, silent)));
  let shownAt = 0;
  let turn = 0;
  return {
    empty: () => model.loaded && model.conn === "live" && ![...model.lines.values()].some(inUse),
    tick(second) {
      // The tiles and the order of the contended locks change once a second at most: a wall screen stays calm.
      if (second || !turn) {
        for (const node of tiles) node.draw();
        drawContended(rows, none);
        store.draw();
      }
      turn++;
      silent.hidden = model.events.length > 0 || !known();
      attr(recent, "aria-busy", "false");
      if (Date.now() - shownAt < 3000 && recent.children.length) return;
      shownAt = Date.now();
      const seen = new Set();
      const one = (event) => !seen.has(event.lock) && seen.add(event.lock);
      eventList(recent, model.events.filter(one).slice(0, 7));
    },
  };
}
