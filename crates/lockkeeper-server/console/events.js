// The log: what happens, as it happens. Pause freezes it and counts what is new.

import { attr, h, path, set, svg } from "./dom.js";
import { num, t } from "./i18n.js";
import { model } from "./state.js";
import { chips, search } from "./table.js";
import { EVENT_TYPES, eventList } from "./words.js";

const FILTERS = ["all", ...EVENT_TYPES];

function drawRates(chart) {
  const d = ["", "", ""];
  model.rates.forEach((counts, i) => {
    let y = 44;
    counts.forEach((count, k) => {
      const tall = Math.min(14, count && 2 + 3 * Math.log2(1 + count));
      if (!tall) return;
      d[k] += `M${595 - i * 10} ${y}v${-tall.toFixed(1)}`;
      y -= tall + 1;
    });
  });
  d.forEach((text, k) => attr(chart.children[k], "d", text));
}

export function eventsPage(main) {
  let text = "";
  let kind = "all";
  let frozen = null;
  const list = h("ol.log");
  const none = h("p.none");
  const strokes = ["granted", "queued", "lost"].map((k) => path("tick.s-" + k, ""));
  const chart = svg("rates", { viewBox: "0 0 600 44", preserveAspectRatio: "none" }, strokes);
  const button = h("button.primary", { onclick: toggle });
  const fresh = h("button.fresh", { onclick: toggle });
  const warning = h("p.note.warn", t("no_events"));
  const field = search("search_names", "", (words) => ((text = words), tick()));
  const count = (k) => (k === "all" ? model.events.length : model.events.filter((event) => event.type === k).length);
  const counts = () => FILTERS.map((k) => [k, count(k), k === "all" ? "" : k]);
  const pills = chips(counts, () => kind, (k) => ((kind = k), tick()), (k) => (k === "all" ? "all" : "e_" + k));

  function toggle() {
    frozen = frozen ? null : { events: [...model.events], count: model.eventCount };
    tick();
  }

  function tick() {
    const all = frozen?.events || model.events;
    const fits = (event) => (kind === "all" || event.type === kind) && event.low.includes(text);
    const shown = all.filter(fits).slice(0, 150);
    eventList(list, shown);
    none.hidden = shown.length > 0;
    set(none, t(all.length ? "no_match" : "no_events_yet"));
    warning.hidden = model.eventsFlow || model.conn !== "live";
    set(attr(button, "aria-pressed", !!frozen), t(frozen ? "resume" : "pause"));
    const news = frozen ? model.eventCount - frozen.count : 0;
    fresh.hidden = !news;
    set(fresh, t("n_new", num(news)));
    pills.draw();
    drawRates(chart);
  }

  main.append(h("div.bar1", h("h1", t("events")), field, pills, button),
    h("section.card.fill", h("div.ratebox", chart, h("span.dim", t("rates_note")), warning), fresh, list, none));
  return { tick, toggle, focus: () => field.children[1].focus() };
}
