// No lock yet: how to take the first one.

import { h, path, set, svg } from "./dom.js";
import { hasToken } from "./api.js";
import { t } from "./i18n.js";

const command = () => `lockkeeper --store lockkeeper+${location.origin} run hello -- sleep 60`;

function curl() {
  const token = hasToken() ? ` -H "Authorization: Bearer $TOKEN"` : "";
  return `curl ${location.origin}/v1/locks/hello${token} --json '{"wait_ms":60000,"ttl_ms":60000}'`;
}

function code(label, text) {
  const button = h("button.small", t("copy"));
  button.onclick = async () => {
    await navigator.clipboard?.writeText(text);
    set(button, t("copied"));
  };
  return h("figure", h("figcaption.dim", t(label)), h("div.code", h("span.dim", "$"), h("code", text), button));
}

const picture = () =>
  svg("x", { viewBox: "0 0 320 96" }, path("water", "M0 78H320"), path("box", "M28 22h92l-16 28 16 28H28z"), path("leaf", "M120 22l-9 16M120 78l-9-16"),
    [152, 192, 228, 260, 288].map((x, i) => h("~rect.slot", { x, y: 40 + i * 5, width: 28 - i * 4, height: 38 - i * 5, rx: 4 })));

export function emptyPage(main) {
  main.append(h("section.empty", picture(), h("h1", t("no_locks")), h("p", t("first_lock")),
    code("with_curl", curl()), code("with_command", command()), h("p.dim", t("run_again"))));
  return { tick() {} };
}
