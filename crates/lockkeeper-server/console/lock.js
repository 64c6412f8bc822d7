// One lock: its line drawn as a line, its timeline, its fences; and the way to evict a holder.

import { barTo, bar, card, fact, glyph, h, icon, nameEl, set, setGlyph, svg, sync } from "./dom.js";
import { followLine } from "./feed.js";
import { dur, fence, num, t } from "./i18n.js";
import { chamber, rail } from "./line.js";
import { evictSheet } from "./evict.js";
import { lineOf, now, recentSpans } from "./state.js";
import { drawTimeline } from "./timeline.js";
import { modeOf, ownerOf } from "./words.js";

const LEGEND = [["waiting", "waits"], ["held", "holds"], ["lost", "e_lost"], ["evicted", "e_evicted"]];

function drawFences(list, line, past) {
  const present = line.holders.map((ticket) => ({ ticket, end: now(), how: "held" }));
  const spans = [...present, ...[...past].reverse()].filter((span) => span.ticket.fence).slice(0, 13);
  const none = !spans.length;
  list.classList.toggle("dim", none);
  if (none) {
    list.kept = null;
    return set(list, t(line.kind === "exclusive" ? "no_grants" : "no_fences"));
  }
  if (!list.kept) list.replaceChildren();
  const most = Math.max(1, ...spans.map((span) => span.end - span.ticket.got));
  const make = ({ ticket }) => h("li", glyph("held"), h("span.mono", { title: ticket.fence }, fence(ticket.fence)), h("span.own", ownerOf(ticket)), bar(), h("span.n"));
  sync(list, spans, (span) => span.ticket.id, make, (node, { ticket, end, how }) => {
    setGlyph(node.firstChild, how);
    set(node.children[2], ownerOf(ticket));
    node.title = t(how === "held" ? "s_held" : "e_" + how);
    barTo(node.children[3], how === "held" ? "held" : "past", (end - ticket.got) / most);
    set(node.lastChild, dur(end - ticket.got));
  });
}

export function lockPage(main, name) {
  const stop = new AbortController();
  const values = ["line", "oldest_wait", "typical_hold", "handovers"].map((key) => fact(t(key), h("dd")));
  const mode = h("span.pill");
  const gate = chamber();
  const track = rail();
  const history = h("ol.history");
  const picture = svg("timeline", { role: "img", "aria-hidden": "false", "aria-label": t("timeline") });
  const evict = h("button.danger", { onclick: () => evictSheet(lineOf(name)) }, t("evict"));
  const legend = h("span.legend", LEGEND.map(([mark, key]) => h("span.who", glyph(mark), t(key))));
  main.append(h("div.grid.detail",
    h("div.headline", h("a.crumb", { href: "#/locks" }, t("locks") + " /"), h("h1", nameEl(name, "bdi")), mode,
      h("a.pill.to", { href: "#/cells/" + encodeURIComponent(name) }, icon("cells"), t("cell")), h("dl.facts", values), evict),
    h("section.card.stage", gate, track),
    card(".lanes", t("timeline"), legend, h("div", picture)),
    card(".fences", t("fence_history"), null, history)));

  let drawn = 0;
  function tick(second) {
    const line = lineOf(name);
    const past = recentSpans(line);
    const holds = past.filter((span) => span.ticket.got).map((span) => span.end - span.ticket.got).sort((a, b) => a - b);
    const first = line.waiters[0];
    const texts = [
      t("n_waiting", num(line.waiters.length)),
      first ? dur(now() - first.entered) : "–",
      holds.length ? dur(holds[holds.length >> 1]) : "–",
      num(holds.length + line.holders.length),
    ];
    texts.forEach((text, i) => set(values[i].lastChild, text));
    set(mode, modeOf(line));
    gate.draw(line);
    track.draw(line);
    evict.disabled = !line.holders.length;
    // The timeline moves by a pixel a second: it need not be drawn more often than that.
    if (second || !drawn) {
      drawn++;
      drawTimeline(picture, line);
      drawFences(history, line, past);
    }
  }

  followLine(name, stop.signal, () => tick(false));
  return { back: "#/locks", tick, end: () => stop.abort() };
}
