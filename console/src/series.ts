// What did the last fifteen minutes look like, by class, as a chart wants it?

import type { TailPoint } from './state'

export const SPAN_S = 15 * 60
/** Less is not drawn, or the first minute would race across the page. */
const SPAN_MIN_S = 2 * 60
export const CLASSES_MAX = 12
/** Told points are about five seconds apart in the history and a second apart while somebody watches. */
export const POINTS_MAX = SPAN_S + 180

export type Value = 'ttft_p50_ms' | 'ttft_p99_ms' | 'queued' | 'per_s'

export class Series {
  private times: number[] = []
  private rows: Map<string, TailPoint>[] = []
  private names: string[] = []

  get classes(): readonly string[] {
    return this.names
  }

  get length(): number {
    return this.times.length
  }

  clear(): void {
    this.times = []
    this.rows = []
    this.names = []
  }

  /** Points of one moment may come one by one; a moment before the last is out of order and left out. */
  add(points: readonly TailPoint[]): void {
    for (const point of points) {
      const last = this.times.at(-1)
      if (last !== undefined && point.t < last) continue
      if (last === undefined || point.t > last) {
        this.times.push(point.t)
        this.rows.push(new Map())
      }
      if (!this.names.includes(point.class)) {
        if (this.names.length >= CLASSES_MAX) continue
        this.names.push(point.class)
      }
      this.rows.at(-1)?.set(point.class, point)
    }
    this.forget()
  }

  /** One row of times, and one of values for each class; null where nothing was measured. */
  columns(value: Value): (number | null)[][] {
    const lines = this.names.map((name) => this.rows.map((row) => row.get(name)?.[value] ?? null))
    return [this.times, ...lines]
  }

  private forget(): void {
    const newest = this.times.at(-1) ?? 0
    const first = this.times.findIndex((time) => time >= newest - SPAN_S)
    const surplus = Math.max(first, this.times.length - POINTS_MAX, 0)
    this.times.splice(0, surplus)
    this.rows.splice(0, surplus)
  }
}

/** A line is drawn across gaps up to this length: a class with few requests has no value at most moments. */
export const GAP_DRAWN_S = 30

/** The gaps, as pixels, that are too long for a line to be drawn across them. */
export function longGaps(gaps: readonly [number, number][], timeAt: (pixel: number) => number): [number, number][] {
  return gaps.filter(([from, to]) => timeAt(to) - timeAt(from) > GAP_DRAWN_S)
}

/** As much of the past as there is, two minutes at least. */
export function timeRange(first: number | null, last: number | null): [number, number] {
  const newest = last ?? 0
  return [Math.max(newest - SPAN_S, Math.min(first ?? newest, newest - SPAN_MIN_S)), newest]
}

/** From a thousandth of the unit to as much as there is, in steps that people read. */
export function axisMilliseconds(value: number): string {
  if (value >= 1000) return `${Number((value / 1000).toPrecision(3))} s`
  return `${Number(value.toPrecision(3))} ms`
}
