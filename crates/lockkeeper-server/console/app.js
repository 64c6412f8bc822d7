// The frame: connection mark, pages, theme, language, keys.

import { $, attr, glyph, h, icon, set, setGlyph, fact } from "./dom.js";
import { cellsPage } from "./cells.js";
import { emptyPage } from "./empty.js";
import { eventsPage } from "./events.js";
import { age, start, tryNow } from "./feed.js";
import { clock, dur, lang, nextLanguage, t } from "./i18n.js";
import { lockPage } from "./lock.js";
import { locksPage } from "./locks.js";
import { overviewPage } from "./overview.js";
import { dismiss, sheet, sheetTitle } from "./sheets.js";
import { sessionsPage } from "./sessions.js";
import { measure, model } from "./state.js";
import { askToken, showToken } from "./token.js";

const root = document.documentElement;
let view = null;
let showsEmpty = false;
let focusNext = false;

// Connection

const MARKS = {
  connecting: ["stale", "connecting", ""],
  live: ["held", "live", ""],
  reconnecting: ["expiring", "reconnecting", "banner_reconnecting"],
  stale: ["stale", "stale", "banner_stale"],
  store: ["jeopardy", "store_down", "banner_store"],
  token: ["stale", "sign_in", "banner_token"],
};

function frame() {
  const [mark, word, text] = MARKS[model.conn];
  const gone = dur(Date.now() - model.since);
  const [live, banner] = [$("live"), $("banner")];
  root.dataset.conn = model.conn;
  if (!banner.firstChild) {
    live.append(glyph(mark), h("span"));
    banner.append(glyph(mark), h("p"), h("button.small"));
  }
  for (const node of [live, banner]) setGlyph(node.firstChild, mark);
  set(live.lastChild, t(word, gone));
  attr(banner, "class", "s-" + mark).hidden = !text;
  if (!text) return;
  set(banner.children[1], t(text, gone, clock(model.since)));
  set(banner.lastChild, t(model.conn === "token" ? "sign_in" : "try_now")).onclick = again;
}

const again = () => (model.conn === "token" ? askToken() : tryNow());

// Pages

const PAGES = { "": overviewPage, locks: locksPage, sessions: sessionsPage, events: eventsPage, cells: cellsPage };
const WITH_NAME = { locks: lockPage, cells: cellsPage };

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function route() {
  const [, page = "", text] = location.hash.split("/");
  const name = text ? decoded(text) : "";
  const main = $("main");
  const make = (name && WITH_NAME[page]) || PAGES[page] || overviewPage;
  view?.end?.();
  main.replaceChildren();
  main.className = "v-" + (make === lockPage ? "lock" : page || "overview");
  view = make(main, name);
  showsEmpty = false;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === "#/" + page) attr(link, "aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = (name ? name + " · " : "") + "lockkeeper";
  scrollTo(0, 0);
  draw(true);
  if (focusNext) view.focus?.();
  focusNext = false;
}

/** Overview and locks give way to the first command while there is nothing to show. */
function draw(second) {
  const empty = !!view.empty?.();
  if (empty && !showsEmpty) {
    const [main, behind] = [$("main"), view];
    main.replaceChildren();
    main.className = "v-empty";
    view = { ...emptyPage(main), empty: behind.empty, end: behind.end };
    showsEmpty = true;
  } else if (!empty && showsEmpty) route();
  view.tick(second);
}

let drawing = 0;

/** The model has changed: draw soon, at most four times a second, and at once when the connection has changed. */
function changed(urgent) {
  if (urgent) frame();
  if (!drawing) {
    drawing = setTimeout(() => {
      drawing = 0;
      if (view) draw(false);
    }, 250);
  }
}

function second() {
  age();
  if (model.conn === "live") measure();
  frame();
  draw(true);
}

// Theme and language

const label = (node, text) => attr(node, "aria-label", (node.title = text));

function dress() {
  const theme = root.dataset.theme || "system";
  root.lang = lang() === "zh" ? "zh-CN" : "en";
  for (const node of document.querySelectorAll("[data-t]")) set(node, t(node.dataset.t));
  label($("theme"), t("theme", t(theme))).replaceChildren(icon(theme));
  label($("keys"), t("keyboard"));
  set($("lang"), t("language")).lang = lang() === "zh" ? "en" : "zh-CN";
  showToken();
}

function nextTheme() {
  const next = { light: "dark", dark: "" }[root.dataset.theme] ?? "light";
  root.dataset.theme = next;
  try {
    localStorage.setItem("lockkeeper-theme", next);
  } catch {
    // Storage is blocked: the choice lasts until the page is closed.
  }
  dress();
}

function changeLanguage() {
  nextLanguage();
  dress();
  route();
  frame();
}

// Keys

const GO = { o: ["#/", "overview"], l: ["#/locks", "locks"], s: ["#/sessions", "sessions"], e: ["#/events", "events"], c: ["#/cells", "cells"] };
const KEYS = [["/", "k_search"], ["j k", "k_rows"], ["Enter", "k_open"], ["← →", "k_along"], ["Esc", "k_back"], ["Space", "k_pause"], ["t", "theme_key"], ["?", "k_sheet"]];

function keySheet() {
  const rows = [...Object.entries(GO).map(([key, [, word]]) => ["g " + key, word]), ...KEYS];
  const list = h("dl.keys", rows.map(([keys, word]) => fact(t(word), h("dd", keys.split(" ").map((key) => h("kbd", key))))));
  sheet(sheetTitle(t("keyboard")), list, h("footer", dismiss("close")));
}

/** Leads to the search of this page, or else to that of all locks. */
function find() {
  if (view.focus && !location.hash.startsWith("#/cells")) return view.focus();
  focusNext = true;
  location.hash = "#/locks";
}

let pending = false;

function actionOf(e) {
  const { key, target } = e;
  const typing = target.matches?.("input, textarea");
  const { list } = view;
  if ((key === "/" && !typing) || (key === "k" && (e.ctrlKey || e.metaKey))) return find;
  if (e.ctrlKey || e.metaKey) return null;
  const down = list && (() => list.move(1));
  const up = list && (() => list.move(-1));
  if (typing) return { Escape: () => target.blur(), ArrowDown: down, Enter: list && target.value && view.open }[key];
  if (pending) return GO[key] && (() => (location.hash = GO[key][0]));
  return {
    j: down, ArrowDown: down, k: up, ArrowUp: up, t: nextTheme, "?": keySheet,
    Escape: view.back && (() => (location.hash = view.back)),
    " ": !target.matches?.("button") && view.toggle,
    Enter: target.matches?.(".table") && view.open,
  }[key];
}

onkeydown = (e) => {
  if ($("sheet").open || e.altKey) return;
  const act = actionOf(e);
  pending = e.key === "g" && !e.target.matches?.("input, textarea") && !pending;
  if (!act) return;
  e.preventDefault();
  act();
};

onhashchange = route;
onresize = () => draw(true);
document.addEventListener("visibilitychange", () => !document.hidden && tryNow());
$("skip").onclick = () => $("main").focus();
$("find").onclick = find;
$("keys").onclick = keySheet;
$("theme").onclick = nextTheme;
$("lang").onclick = changeLanguage;
$("live").onclick = again;

dress();
route();
frame();
start({ change: changed, token: askToken });
setInterval(second, 1000);
