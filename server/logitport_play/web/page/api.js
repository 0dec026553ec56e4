// Calls of the server. The address of the page has the token, so relative addresses have it, too.

async function answer(response) {
  const body = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (!response.ok) throw new Error(body.error ?? `the server answered ${response.status}`);
  return body;
}

export async function get(name) {
  return answer(await fetch(`api/${name}`));
}

export async function post(name, value, signal) {
  const headers = { "content-type": "application/json" };
  return answer(await fetch(`api/${name}`, { method: "POST", headers, body: JSON.stringify(value), signal }));
}
