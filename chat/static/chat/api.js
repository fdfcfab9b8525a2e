/* The site's JSON API, with the session's cookie and its CSRF token. Every failure is an ApiError
   with the site's own words; `status` is 0 where the site did not answer at all. */

import { has, t } from "./words.js";

const root = document.body.dataset.root;
const csrf = () => document.querySelector("[name=csrfmiddlewaretoken]").value;

export const url = (path) => root + path;

export class ApiError extends Error {
  constructor(status, code, detail) {
    super(detail);
    this.status = status;
    this.code = code;
  }
}

export async function call(method, path, body) {
  const headers = { Accept: "application/json" };
  if (method !== "GET") headers["X-CSRFToken"] = csrf();
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(url(path), { method, headers, body: body && JSON.stringify(body), redirect: "manual" });
  } catch {
    throw new ApiError(0, "unreachable", t("request_failed"));
  }
  // A page that wants a sign-in redirects; the API says 401. Both are the same to a reader.
  if (response.type === "opaqueredirect") throw new ApiError(401, "signed_out", t("signed_out"));
  const answer = response.status === 204 ? null : await response.json().catch(() => null);
  if (!response.ok) throw refusal(response, answer ?? {});
  return answer;
}

/* In the reader's language where it is a common one. */
function refusal({ status, headers }, { code = "", detail = t("request_failed") }) {
  const words = `refused_${status}`;
  return new ApiError(status, code, has(words) ? t(words, { seconds: headers.get("Retry-After") ?? 1 }) : detail);
}

/* randomUUID exists on secure origins only; a site on a local network is none. */
export function newId() {
  if (crypto.randomUUID) return crypto.randomUUID();
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}
