import assert from "node:assert/strict";
import { test } from "node:test";
import { Client } from "../src/client.ts";

// A model whose kernel is the test.
function pair() {
  const sent: Record<string, unknown>[] = [];
  const heard = new Map<string, (content?: unknown) => void>();
  const model = {
    send: (content: unknown) => void sent.push(content as Record<string, unknown>),
    on: (event: string, listener: (content?: never) => void) => void heard.set(event, listener as () => void),
  };
  const client = new Client(model as never);
  const say = (content: object): void => heard.get("msg:custom")!({ v: 1, ...content });
  return { client, sent, say, lose: () => heard.get("comm_live_update")!() };
}

const types = (sent: Record<string, unknown>[]): unknown[] => sent.map((m) => m["type"]);

test("it opens with the first who looks and closes with the last", () => {
  const { client, sent, say } = pair();
  const one = client.listen(() => {});
  const two = client.listen(() => {});
  say({ type: "state", revision: 1, kind: "table", data: {} });
  one();
  assert.deepEqual(types(sent), ["open"]);
  two();
  assert.deepEqual(types(sent), ["open", "close"]);
});

test("a patch that was missed asks for the whole state", () => {
  const { client, sent, say } = pair();
  let drawn = 0;
  client.listen(() => drawn++);
  say({ type: "state", revision: 4, kind: "table", data: { n: 1 } });
  say({ type: "patch", revision: 5, changes: { n: { $value: 2 } } });
  assert.deepEqual(client.snapshot.data, { n: 2 });
  say({ type: "patch", revision: 7, changes: { n: { $value: 9 } } });
  assert.deepEqual(client.snapshot.data, { n: 2 });
  assert.deepEqual(types(sent), ["open", "open"]);
  assert.equal(drawn, 2);
});

test("a patch that is older than the state changes nothing", () => {
  const { client, sent, say } = pair();
  client.listen(() => {});
  say({ type: "state", revision: 6, kind: "table", data: { n: 1 } });
  say({ type: "patch", revision: 6, changes: { n: { $value: 0 } } });
  assert.deepEqual(client.snapshot.data, { n: 1 });
  assert.deepEqual(types(sent), ["open"]);
});

test("answers and errors go to who asked", async () => {
  const { client, sent, say } = pair();
  const first = client.ask("graph", { at: 3 });
  const second = client.ask("diff");
  assert.deepEqual(sent[0], { v: 1, type: "ask", id: 1, ask: "graph", arguments: { at: 3 } });
  say({ type: "error", id: 1, message: "LookupError: no such instruction" });
  say({ type: "answer", id: 2, value: [1] });
  await assert.rejects(first, /no such instruction/);
  assert.deepEqual(await second, [1]);
});

test("a kernel that goes rejects what is open, and what comes later", async () => {
  const { client, say, lose } = pair();
  say({ type: "state", revision: 1, kind: "table", data: { n: 1 } });
  const open = client.ask("graph");
  lose();
  await assert.rejects(open, /gone/);
  await assert.rejects(client.ask("graph"), /no longer/);
  assert.equal(client.snapshot.life, "gone");
  assert.deepEqual(client.snapshot.data, { n: 1 });
});

test("another version of the protocol is said, not drawn", () => {
  const { client, say } = pair();
  say({ v: 2, type: "state", revision: 1, kind: "table", data: {} });
  assert.match(client.snapshot.error ?? "", /version 2/);
  assert.equal(client.snapshot.data, null);
});
