/** Who has how many rows, and who waits? */

import { byId, h } from "../dom.js";

const MAX_SHOWN = 12;

/** Show the tenants of an engine. */
export function showTenants(tenants) {
  const shown = (tenants ?? []).slice(0, MAX_SHOWN);
  const most = Math.max(1, ...shown.map((each) => each.running + each.waiting));
  byId("tenants").replaceChildren(
    ...shown.map((each) => {
      const bar = h("div", { class: "share", "aria-hidden": "true" }, h("i", { class: "running" }), h("i", { class: "waiting" }));
      bar.children[0].style.width = `${(each.running / most) * 100}%`;
      bar.children[1].style.width = `${(each.waiting / most) * 100}%`;
      return h("li", {}, h("span", { class: "name" }, nameOf(each)), bar, h("span", { class: "number" }, countsOf(each)));
    }),
  );
  byId("tenants-empty").hidden = shown.length > 0;
}

const nameOf = ({ tenant, others }) => (others ? `${others} ${others === 1 ? "other" : "others"}` : tenant || "Everybody");

const countsOf = ({ running, waiting }) => (waiting ? `${running} run, ${waiting} wait` : `${running} run`);
