// State of a view that outlives its place in the page: a notebook takes cells that are out of sight off the page.
import { useState } from "preact/hooks";
import type { Client } from "./client.ts";

const kept = new WeakMap<Client, Map<string, unknown>>();

export function useKept<T>(client: Client, name: string, initial: T): [T, (value: T) => void] {
  let own = kept.get(client);
  if (!own) kept.set(client, (own = new Map()));
  const store = own;
  const [value, set] = useState<T>(store.has(name) ? (store.get(name) as T) : initial);
  return [
    value,
    (next: T) => {
      store.set(name, next);
      set(next);
    },
  ];
}
