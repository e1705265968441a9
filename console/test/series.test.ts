// The series keep the received points within their bounds.
import { describe, expect, it } from 'vitest'

import { axisMilliseconds, CLASSES_MAX, GAP_DRAWN_S, longGaps, POINTS_MAX, Series, SPAN_S, timeRange } from '../src/series'
import type { LatencyPoint } from '../src/state'

function point(t: number, name = 'interactive', p99: number | null = 100): LatencyPoint {
  return { t, class: name, ttft_p50_ms: 50, ttft_p99_ms: p99, queued: 3, arrived_per_s: 1 }
}

describe('gaps', () => {
  it('interrupts a line at a long gap', () => {
    const timeAt = (pixel: number) => 1000 + pixel / 2
    const short: [number, number] = [0, 2 * GAP_DRAWN_S]
    const long: [number, number] = [100, 102 + 2 * GAP_DRAWN_S]
    expect(longGaps([short, long], timeAt)).toEqual([long])
  })
})

describe('series', () => {
  it('groups points with the same time', () => {
    const series = new Series()
    series.add([point(10), point(10, 'batch', null), point(15)])
    expect(series.columns('ttft_p99_ms')).toEqual([[10, 15], [100, 100], [null, null]])
  })

  it('replaces a point with the same time', () => {
    const series = new Series()
    series.add([point(10)])
    series.add([point(10, 'interactive', 70)])
    expect(series.columns('ttft_p99_ms')).toEqual([[10], [70]])
  })

  it('ignores points that are out of order', () => {
    const series = new Series()
    series.add([point(10), point(9), point(11)])
    expect(series.columns('queued')[0]).toEqual([10, 11])
  })

  it('drops points older than its span', () => {
    const series = new Series()
    series.add([point(0), point(1), point(SPAN_S + 1)])
    expect(series.columns('queued')[0]).toEqual([1, SPAN_S + 1])
  })

  it('stays within its bounds', () => {
    const series = new Series()
    for (let t = 0; t < 3 * POINTS_MAX; t++) series.add([point(t / 4)])
    for (let n = 0; n < 2 * CLASSES_MAX; n++) series.add([point(10_000, `class ${n}`)])
    expect(series.length).toBeLessThanOrEqual(POINTS_MAX)
    expect(series.classes.length).toBe(CLASSES_MAX)
  })

  it('can be cleared', () => {
    const series = new Series()
    series.add([point(10)])
    series.clear()
    expect([series.length, series.classes]).toEqual([0, []])
  })

  it('spans between 2 and 15 minutes', () => {
    expect(timeRange(990, 1000)).toEqual([880, 1000])
    expect(timeRange(500, 1000)).toEqual([500, 1000])
    expect(timeRange(0, 2000)).toEqual([2000 - SPAN_S, 2000])
    expect(timeRange(null, null)).toEqual([-120, 0])
  })

  it('labels the axis', () => {
    expect([1, 100, 1000, 30_000].map(axisMilliseconds)).toEqual(['1 ms', '100 ms', '1 s', '30 s'])
  })
})
