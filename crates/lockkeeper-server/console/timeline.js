// Fifteen minutes of one lock, a lane per owner: thin bars wait, thick bars hold, a cross or a barred circle is a bad
// end, hairlines join hand-overs, and below lies the length of the line.

import { GLYPHS, attr, h, path } from "./dom.js";
import { clock, num, t } from "./i18n.js";
import { MINUTE, SPAN, model, now, recentSpans } from "./state.js";
import { ownerOf } from "./words.js";

const { floor, max, min } = Math;

/** The present line on top in its order, then the owners that have left, the latest first. */
export function lanesOf(line, most) {
  const lanes = new Map();
  const past = recentSpans(line);
  const lane = (ticket, no) => {
    if (!lanes.has(ticket.who) && lanes.size < most) lanes.set(ticket.who, { ticket, no, segments: [] });
  };
  for (const ticket of line.holders) lane(ticket, 0);
  line.waiters.slice(0, max(1, most - 3)).forEach((ticket, i) => lane(ticket, i + 1));
  for (const span of [...past].reverse()) lane(span.ticket, -1);
  const present = line.holders.map((ticket) => ({ ticket, end: now(), how: "" }));
  const waiting = line.waiters.map((ticket) => ({ ticket, end: 0, how: "" }));
  for (const segment of [...past, ...present, ...waiting]) lanes.get(segment.ticket.who)?.segments.push(segment);
  return [...lanes.values()];
}

/** How many tickets waited at 91 moments between `from` and now, as far as the page knows. */
export function lengthsOf(line, from, span = SPAN) {
  const steps = 90;
  const delta = new Array(steps + 2).fill(0);
  const stepOf = (at) => max(0, min(steps + 1, Math.ceil((at - from) / (span / steps))));
  for (const ticket of [...line.spans.map((span) => span.ticket), ...line.holders, ...line.waiters]) {
    delta[stepOf(ticket.entered)]++;
    if (ticket.got) delta[stepOf(ticket.got)]--;
  }
  for (const span of line.spans) if (!span.ticket.got) delta[stepOf(span.end)]--;
  let sum = 0;
  return delta.slice(0, steps + 1).map((change) => (sum += change));
}

export function drawTimeline(picture, line) {
  const box = picture.parentNode;
  const W = box.clientWidth;
  const small = W < 560;
  const X0 = small ? 76 : 112;
  const X1 = W - (small ? 34 : 40);
  const tall = small ? 480 : max(360, box.clientHeight);
  const lanes = lanesOf(line, small ? 10 : max(3, floor((tall - 92) / 23)));
  const gap = min(56, (tall - 92) / max(1, lanes.length));
  const Y = (i) => 36 + i * gap;
  const last = Y(max(0, lanes.length - 1)) + 26;
  const H = last + max(36, min(64, tall - last));
  // As long as little is known, the time that is known fills the picture.
  const known = now() - line.since;
  const span = known < 2.5 * MINUTE ? 3 * MINUTE : known < 5 * MINUTE ? 6 * MINUTE : SPAN;
  const from = now() - span;
  const x = (at) => X0 + (X1 - X0) * max(0, min(1, (at - from) / span));
  const out = [];
  const grants = [];
  const text = (spec, at, y, words) => out.push(h("~text." + spec, { x: at, y }, words));
  const rect = (spec, a, b, y, height, rx) => b > a && out.push(h("~rect." + spec, { x: a, y: y - height / 2, width: max(1, b - a), height, rx }));

  const marks = small ? 3 : 5;
  for (let k = 0; k <= marks; k++) {
    const at = now() - (k * span) / marks;
    out.push(path("grid-line", `M${x(at)} 20V${H}`));
    text("axis", x(at), 12, k ? clock(at, span < SPAN ? 8 : 5) : model.conn === "live" ? t("now") : clock(at));
  }

  // What happened before the service (or this page) began to watch is not known, and not drawn as if it were.
  if (line.since > from + span / 15) {
    out.push(h("~rect.unseen", { x: X0, y: 22, width: x(line.since) - X0, height: H - 22 }));
    if (x(line.since) - X0 > 150) text("axis.unseen-since", (X0 + x(line.since)) / 2, last - 4, t("seen_from", clock(line.since, 5)));
  }

  function segment({ ticket, end, how }, y, i) {
    const [a, b, c] = [x(ticket.entered), x(ticket.got || end || now()), x(end)];
    rect("wait", a, b, y, 4, 2);
    if (ticket.entered > from) out.push(h("~circle.start", { cx: a, cy: y, r: 3.5 }));
    if (!end) return;
    if (ticket.got) {
      rect("hold" + (ticket.foreign ? ".s-foreign" : ""), b, max(c, b + 1.5), y, 18, max(0, min(4, (c - b) / 2)));
      grants.push([ticket.got, i]);
      if (ticket.fence && c - b > 58) text("mark", (b + c) / 2, y + 4, num(ticket.fence.slice(-6)));
    }
    if (how && how !== "released" && how !== "withdrawn") {
      const halo = h("~circle.halo", { cx: 6, cy: 6, r: 7.5 });
      out.push(h("~g", { transform: `translate(${c - 1} ${y - 7}) scale(1.2)` }, halo, h("~path.s-" + how, { d: GLYPHS[how] || GLYPHS.lost, "fill-rule": "evenodd" })));
    }
  }

  const short = (words) => (words.length > (small ? 10 : 15) ? words.slice(0, small ? 9 : 14) + "…" : words);
  lanes.forEach(({ ticket, no, segments }, i) => {
    const y = Y(i);
    out.push(path("lane", `M${X0} ${y}H${X1}`));
    out.push(h("~text.owner.s-" + (no < 0 ? "past" : ticket.state), { x: X0 - 10, y: y + 4 }, h("~title", ownerOf(ticket)), short(ownerOf(ticket))));
    if (no >= 0) text("no", X1 + 10, y + 4, no ? String(no) : "●");
    for (const part of segments) segment(part, y, i);
  });

  if (line.kind === "exclusive") {
    grants.sort((p, q) => p[0] - q[0]);
    grants.forEach(([at, i], k) => k && at > from && out.push(path("hand", `M${x(at)} ${Y(grants[k - 1][1])}V${Y(i)}`)));
  }
  const counts = lengthsOf(line, from, span);
  const top = max(...counts, 1);
  const points = counts.map((n, k) => `${(X0 + ((X1 - X0) * k) / 90).toFixed(1)} ${(H - (n / top) * (H - last)).toFixed(1)}`);
  out.push(path("length", `M${X0} ${H}L${points.join("L")}V${H}z`));
  text("owner.s-past", X0 - 10, H - 4, t("line_length"));
  text("no", X1 + 10, H - 4, num(line.waiters.length));
  attr(attr(picture, "viewBox", `0 0 ${W} ${H}`), "height", H).replaceChildren(...out);
}
