// Numbers for a reader. A number that is not known shows as nothing.

export type Maybe<T> = T | null | undefined;

const scaled = (value: number, step: number, units: readonly string[]): string => {
  let i = 0;
  while (Math.abs(value) >= step && i < units.length - 1) {
    value /= step;
    i++;
  }
  const digits = i === 0 && Number.isInteger(value) ? 0 : Math.abs(value) >= 100 ? 0 : 1;
  return `${value.toFixed(digits)}${units[i] ? ` ${units[i]}` : ""}`;
};

export const count = (value: Maybe<number>): string => (value == null ? "" : value.toLocaleString("en-US"));

export const bytes = (value: Maybe<number>): string =>
  value == null ? "" : scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);

export const flops = (value: Maybe<number>): string => (value == null ? "" : scaled(value, 1000, ["", "k", "M", "G", "T", "P"]));

export function seconds(value: Maybe<number>): string {
  if (value == null) return "";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-6) return `${(value * 1e9).toFixed(0)} ns`;
  if (size < 1e-3) return `${(value * 1e6).toFixed(size < 1e-5 ? 1 : 0)} µs`;
  if (size < 1) return `${(value * 1e3).toFixed(size < 1e-2 ? 2 : size < 0.1 ? 1 : 0)} ms`;
  return size < 120 ? `${value.toFixed(size < 10 ? 2 : 1)} s` : `${(value / 60).toFixed(1)} min`;
}

export const share = (value: Maybe<number>): string =>
  value == null ? "" : `${(value * 100).toFixed(value !== 0 && Math.abs(value) < 0.1 ? 1 : 0)}%`;
