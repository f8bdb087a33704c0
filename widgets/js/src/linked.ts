// Links between the lines of a program's text and lines of user code, both ways.
import type { StageAnswer } from "./generated.ts";

export interface Links {
  of: (line: number) => readonly number[]; // of a line of the text (from 0), its Ls
  to: (chosen: ReadonlySet<number>) => number[]; // the lines of the text that belong to one of these Ls, ascending
}

export function linksOf({ groups, links }: Pick<StageAnswer, "groups" | "links">): Links {
  return {
    of: (line) => groups[links[line] ?? -1] ?? [],
    to: (chosen) => {
      const wanted = groups.map((group) => group.some((l) => chosen.has(l)));
      const found: number[] = [];
      links.forEach((group, line) => wanted[group] && found.push(line));
      return found;
    },
  };
}

// The first L of each line of the text, which gives the line its colour; null for none.
export const firstOf = ({ groups, links }: Pick<StageAnswer, "groups" | "links">): (number | null)[] =>
  links.map((group) => groups[group]?.[0] ?? null);

// Instructions of optimized HLO by name, with their line in the text (from 0).
export function instructionsOf(text: string): Map<string, number> {
  const found = new Map<string, number>();
  text.split("\n").forEach((line, i) => {
    const name = instructionOn(line);
    if (name !== null && !found.has(name)) found.set(name, i);
  });
  return found;
}

export const instructionOn = (line: string): string | null => /^\s+(?:ROOT )?%?([^\s=%]+) = /.exec(line)?.[1] ?? null;
