// SPDX-License-Identifier: Apache-2.0
// Calls to weir's API. The token, where one is needed, lives in this tab only.

const tokenKey = "weir-token";

/** An answer that is no success. `code` is the problem's word, `status` the HTTP status. */
export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `status ${status}`);
    this.status = status;
    this.code = problem.code || "";
  }
}

export function setToken(token) {
  sessionStorage.setItem(tokenKey, token);
}

async function call(method, path, body) {
  const headers = {};
  const token = sessionStorage.getItem(tokenKey);
  if (token) headers["Authorization"] = `Bearer ${token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
    signal: AbortSignal.timeout(5000),
  });
  const data = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, data);
  return data;
}

export const status = () => call("GET", "/api/v1/status");
export const pools = async () => (await call("GET", "/api/v1/pools")).pools;
export const patch = (pool, backend, change) =>
  call("PATCH", `/api/v1/pools/${encodeURIComponent(pool)}/backends/${encodeURIComponent(backend)}`, change);
