// Data points of the last 15 minutes by class, in the form that the charts need.

import type { LatencyPoint } from './state'

export const SPAN_S = 15 * 60
/** Minimum span of the time axis. With less, the first minute would move too fast. */
const SPAN_MIN_S = 2 * 60
export const CLASSES_MAX = 12
/** Points are five seconds apart in the history and one second apart in the event stream. */
export const POINTS_MAX = SPAN_S + 180

export type Value = 'ttft_p50_ms' | 'ttft_p99_ms' | 'queued' | 'arrived_per_s'

export class Series {
  private times: number[] = []
  private rows: Map<string, LatencyPoint>[] = []
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

  /** Points with the same time may arrive separately. Points older than the latest one are ignored. */
  add(points: readonly LatencyPoint[]): void {
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

  /** One row of times, and one row of values for each class; null if there is no value. */
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

/** Maximum gap that a line spans. A class with few requests has no value in most seconds. */
export const GAP_DRAWN_S = 30

/** Gaps, in pixels, that are too long for a line to span. */
export function longGaps(gaps: readonly [number, number][], timeAt: (pixel: number) => number): [number, number][] {
  return gaps.filter(([from, to]) => timeAt(to) - timeAt(from) > GAP_DRAWN_S)
}

/** Range of the time axis: all data, but at least two minutes. */
export function timeRange(first: number | null, last: number | null): [number, number] {
  const newest = last ?? 0
  return [Math.max(newest - SPAN_S, Math.min(first ?? newest, newest - SPAN_MIN_S)), newest]
}

/** Axis label for a duration in milliseconds. */
export function axisMilliseconds(value: number): string {
  if (value >= 1000) return `${Number((value / 1000).toPrecision(3))} s`
  return `${Number(value.toPrecision(3))} ms`
}
