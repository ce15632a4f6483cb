// SPDX-License-Identifier: Apache-2.0
// The live page: asks once a second what is running and shows it.

import * as api from "./api.js";
import { element, text, setClass, keyed, rate, count, millis, percent, span, sparkline } from "./view.js";

const tick = 1000;
const history = 60; // ticks in a sparkline
const rowsShown = 200; // per pool; the filter finds the others
const before = new Map(); // counters at the last tick, by key

const banner = element("p", { class: "banner", role: "status", hidden: true });
const head = { state: element("span", { class: "badge" }), facts: element("span", { class: "facts" }) };
const listeners = element("div", { class: "listeners" });
const pools = element("div");
const login = element(
  "form",
  { class: "login", hidden: true, onsubmit: signIn },
  element("label", { for: "token" }, "This weir asks for its token"),
  element("input", { id: "token", type: "password", autocomplete: "off", required: true }),
  element("button", {}, "Use it"),
);
document.body.replaceChildren(
  element("header", {}, element("h1", {}, "weir"), head.state, head.facts),
  element("main", {}, banner, login, listeners, pools),
);

function signIn(event) {
  event.preventDefault();
  const field = document.getElementById("token");
  api.setToken(field.value);
  field.value = "";
  refresh();
}

/** Requests per second since the last tick; NaN on the first. */
function perSecond(key, value, now) {
  const last = before.get(key);
  before.set(key, { value, now });
  if (!last || now <= last.now || value < last.value) return NaN;
  return ((value - last.value) * 1000) / (now - last.now);
}

function say(message, bad = true) {
  banner.hidden = !message;
  text(banner, message);
  setClass(banner, bad ? "banner bad" : "banner");
}

let actionError = "";
let lastGood = 0;

async function act(pool, backend, change) {
  try {
    await api.patch(pool, backend, change);
    actionError = "";
  } catch (err) {
    actionError = `${pool}/${backend}: ${err.message}`;
  }
  refresh();
}

// The page.

function showStatus(s) {
  text(head.state, s.state);
  setClass(head.state, `badge ${s.ready ? "healthy" : "not_ready"}`);
  const facts = [`version ${s.version}`, `up ${span(s.uptime_s)}`, `configuration ${s.generation}${s.config ? ` (${s.config})` : ""}`];
  if (!s.ready && s.not_ready) facts.push(`not ready: ${s.not_ready.join("; ")}`);
  text(head.facts, facts.join(" · "));
  keyed(listeners, s.listeners, (l) => l.name, makeListener, updateListener);
}

function makeListener() {
  const e = element("section", { class: "listener" });
  e.parts = { title: element("h2"), facts: element("p", { class: "facts" }), routes: element("ul") };
  e.append(e.parts.title, e.parts.facts, e.parts.routes);
  return e;
}

function updateListener(e, l) {
  text(e.parts.title, l.name);
  text(e.parts.facts, `${l.tls ? "https" : l.protocol} on ${l.bind.join(", ")} · ${count(l.connections)} connections`);
  keyed(
    e.parts.routes,
    l.routes ?? [],
    (r) => r.name,
    () => element("li"),
    (li, r) => text(li, `${r.match || "everything"} → ${r.pool || "answered by weir"}${r.in_flight ? ` · ${count(r.in_flight)} in flight` : ""}`),
  );
}

const columns = ["backend", "state", "share", "in flight", "requests", "failed", "p50", "p99", "last check", "weight", ""];

function makePool(p) {
  const e = element("section", { class: "pool" });
  const spark = sparkline();
  e.series = [];
  e.spark = spark;
  e.parts = {
    title: element("h2", {}, p.name),
    facts: element("span", { class: "facts" }),
    alarm: element("span", { class: "badge broken", hidden: true }),
    filter: element("input", { type: "search", placeholder: "filter", "aria-label": `filter the backends of ${p.name}`, hidden: true, oninput: refresh }),
    rows: element("tbody"),
    more: element("p", { class: "facts", hidden: true }),
  };
  e.append(
    element("div", { class: "poolhead" }, e.parts.title, e.parts.alarm, spark.svg, e.parts.facts, e.parts.filter),
    element(
      "div",
      { class: "scroll" },
      element("table", {}, element("thead", {}, element("tr", {}, ...columns.map((c) => element("th", { scope: "col" }, c)))), e.parts.rows),
    ),
    e.parts.more,
  );
  return e;
}

function updatePool(e, p, now) {
  const r = perSecond(`pool ${p.name}`, p.requests, now);
  if (Number.isFinite(r)) e.series.push(r);
  if (e.series.length > history) e.series.shift();
  e.spark.draw(e.series);
  const facts = [p.balance, `${p.serving} of ${p.size} serving`, rate(r), `${count(p.in_flight)} in flight`];
  if (p.queue_length) facts.push(`${count(p.queue_length)} waiting`);
  if (!p.ready) facts.push("first checks running");
  text(e.parts.facts, facts.join(" · "));
  e.parts.alarm.hidden = !p.panic;
  text(e.parts.alarm, "panic: too few healthy backends, health is ignored");

  const wanted = e.parts.filter.value.trim().toLowerCase();
  const matching = p.backends.filter((b) => !wanted || `${b.id} ${b.url} ${b.health} ${b.admin} ${b.reason}`.toLowerCase().includes(wanted));
  e.parts.filter.hidden = p.backends.length <= 20;
  // In a large pool what is in trouble comes first; a small one keeps its order.
  if (p.backends.length > rowsShown) matching.sort((a, b) => a.share - b.share || b.in_flight - a.in_flight);
  const shown = matching.slice(0, rowsShown);
  keyed(
    e.parts.rows,
    shown,
    (b) => b.id,
    (b) => makeBackend(p.name, b),
    (row, b) => updateBackend(row, p.name, b, now),
  );
  e.parts.more.hidden = shown.length === matching.length;
  text(e.parts.more, `${count(matching.length - shown.length)} more: use the filter`);
}

function makeBackend(pool, b) {
  const row = element("tr");
  const parts = {};
  const cell = (name, ...children) => {
    parts[name] = children[0] ?? element("span");
    return element("td", { class: name }, parts[name], ...children.slice(1));
  };
  parts.url = element("small");
  parts.reason = element("small");
  parts.bar = element("i");
  const button = (label, title, change) =>
    element("button", { type: "button", title, onclick: () => act(pool, b.id, change) }, label);
  parts.drain = button("drain", "no new requests; what is in flight finishes", { admin: "draining" });
  parts.disable = button("disable", "no new requests", { admin: "disabled" });
  parts.enable = button("enable", "takes requests again", { admin: "enabled" });
  parts.reset = button("reset", "back to the configured weight", { weight: null });
  const weight = element("input", {
    type: "number", min: 0, max: 1000, step: 1, "aria-label": `weight of ${b.id}`,
    onchange: () => act(pool, b.id, { weight: Number(weight.value) }),
  });
  row.append(
    element("td", { class: "id" }, element("b", {}, b.id), parts.url),
    cell("state", element("span", { class: "badge" }), parts.reason),
    element("td", { class: "share" }, (parts.share = element("span")), element("span", { class: "bar" }, parts.bar)),
    cell("inflight"), cell("requests"), cell("failures"), cell("p50"), cell("p99"), cell("check"),
    element("td", { class: "weight" }, weight, parts.reset),
    element("td", { class: "actions" }, parts.enable, parts.drain, parts.disable),
  );
  row.parts = Object.assign(parts, { weight });
  return row;
}

function updateBackend(row, pool, b, now) {
  const p = row.parts;
  const state = b.admin === "enabled" ? b.health : b.admin;
  const where = [b.url.endsWith(`//${b.id}`) ? b.url.slice(0, b.url.indexOf(":")) : b.url];
  if (b.zone) where.push(b.zone);
  if (b.backup) where.push("backup");
  if (b.source === "discovery") where.push("found");
  if (b.added) where.push(`added ${span(b.added.age_s)} ago`);
  if (b.removed) where.push("removed");
  text(p.url, where.join(" · "));
  text(p.state, state);
  setClass(p.state, `badge ${state}`);
  const why = [];
  if (b.drain && !b.drain.done) why.push(b.drain.deadline_s > 0 ? `${count(b.drain.in_flight)} left, ${span(b.drain.deadline_s)} to go` : `${count(b.drain.in_flight)} left`);
  else if (b.drain) why.push("empty");
  if (b.reason && b.reason !== "override") why.push(b.reason.replaceAll("_", " "));
  if (b.why && b.health !== "healthy" && (!b.last_check || b.last_check.ok)) why.push(b.why); // else the last check says it
  if (b.since) why.push(`for ${span((now - Date.parse(b.since)) / 1000)}`);
  if (b.override) why.push(`set by an operator ${span(b.override.age_s)} ago`);
  text(p.reason, why.join(" · "));
  text(p.share, percent(b.share));
  p.bar.style.width = `${Math.round(b.share * 100)}%`;
  text(p.inflight, count(b.in_flight));
  const r = perSecond(`backend ${pool} ${b.id}`, b.requests, now);
  text(p.requests, Number.isFinite(r) ? rate(r) : count(b.requests));
  p.requests.title = `${count(b.requests)} in all`;
  text(p.failures, count(b.failures));
  text(p.p50, millis(b.latency_ms.p50));
  text(p.p99, millis(b.latency_ms.p99));
  const c = b.last_check;
  text(p.check, !c ? "–" : c.ok ? "passed" : c.error || "failed");
  setClass(p.check, c && !c.ok ? "failing" : "");
  p.check.title = c ? `${span((now - Date.parse(c.at)) / 1000)} ago` : "no check yet";
  if (document.activeElement !== p.weight) p.weight.value = b.weight;
  p.reset.hidden = !(b.override && b.override.weight !== undefined);
  p.enable.hidden = b.admin === "enabled";
  p.drain.hidden = b.admin !== "enabled";
  p.disable.hidden = b.admin === "disabled";
}

// The loop.

let running = false;
let again = false;

async function refresh() {
  if (running) {
    again = true;
    return;
  }
  running = true;
  try {
    const [s, all] = await Promise.all([api.status(), api.pools()]);
    const now = Date.now();
    lastGood = now;
    login.hidden = true;
    showStatus(s);
    keyed(pools, all, (p) => p.name, makePool, (e, p) => updatePool(e, p, now));
    document.body.dataset.live = String(now);
    say(actionError);
  } catch (err) {
    if (err instanceof api.Refused && err.status === 401) {
      login.hidden = false;
      say("");
    } else if (err instanceof api.Refused) {
      say(err.message);
    } else {
      say(lastGood ? `weir does not answer; what you see is ${span((Date.now() - lastGood) / 1000)} old` : "weir does not answer");
    }
  }
  running = false;
  if (again) {
    again = false;
    refresh();
  }
}

setInterval(() => {
  if (!document.hidden) refresh();
}, tick);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) refresh();
});
refresh();
