// SPDX-License-Identifier: Apache-2.0
// Small pieces of the page. Text goes in as text, never as markup: names and
// errors may hold what a backend made up.

/** element("td", {class: "num"}, child, "text") */
export function element(tag, attributes = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) e.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) e.setAttribute(name, value === true ? "" : value);
  }
  e.append(...children);
  return e;
}

/** Sets text only where it differs, so that a selection survives the next tick. */
export function text(e, value) {
  if (e.textContent !== value) e.textContent = value;
}

export function setClass(e, value) {
  if (e.className !== value) e.className = value;
}

/** Keeps one child per key, in order; make and update are called as needed. */
export function keyed(parent, items, key, make, update) {
  const known = parent.keyedChildren ?? (parent.keyedChildren = new Map());
  const gone = new Set(known.keys());
  let at = parent.firstChild;
  for (const item of items) {
    const k = key(item);
    gone.delete(k);
    let child = known.get(k);
    if (!child) {
      child = make(item);
      known.set(k, child);
    }
    if (child !== at) parent.insertBefore(child, at);
    else at = at.nextSibling;
    update(child, item);
  }
  for (const k of gone) {
    known.get(k).remove();
    known.delete(k);
  }
}

export function rate(n) {
  if (!Number.isFinite(n)) return "–";
  if (n >= 10000) return `${(n / 1000).toFixed(0)}k/s`;
  if (n >= 1000) return `${(n / 1000).toFixed(1)}k/s`;
  return `${n >= 10 || n === 0 ? n.toFixed(0) : n.toFixed(1)}/s`;
}

export function count(n) {
  return Number(n).toLocaleString("en-US");
}

export function millis(n) {
  if (!n) return "–";
  return n < 10 ? `${n.toFixed(1)} ms` : n < 1000 ? `${n.toFixed(0)} ms` : `${(n / 1000).toFixed(1)} s`;
}

export function percent(n) {
  return `${Math.round(n * 100)} %`;
}

export function span(seconds) {
  if (!Number.isFinite(seconds) || seconds < 0) return "";
  const s = Math.floor(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

const svgNS = "http://www.w3.org/2000/svg";

/** A line of the last values, scaled to their maximum. */
export function sparkline() {
  const svg = document.createElementNS(svgNS, "svg");
  svg.setAttribute("class", "spark");
  svg.setAttribute("viewBox", "0 0 120 24");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS(svgNS, "polyline");
  svg.append(line);
  return {
    svg,
    draw(values) {
      const top = Math.max(1, ...values);
      const step = 120 / Math.max(1, values.length - 1);
      line.setAttribute("points", values.map((v, i) => `${(i * step).toFixed(1)},${(23 - (v / top) * 22).toFixed(1)}`).join(" "));
    },
  };
}
