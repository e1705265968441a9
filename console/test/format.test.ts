// Numbers and times are formatted as short text.
import { describe, expect, it } from 'vitest'

import { clock, dollars, lasting, milliseconds, percent, plural, rate, words } from '../src/format'

describe('format', () => {
  it('shows durations with three digits in a suitable unit', () => {
    expect([null, 0, 0.25, 1.5, 12.4, 999, 1234, 12_340, 65_000].map(milliseconds)).toEqual([
      '–', '0 ms', '0.25 ms', '1.5 ms', '12 ms', '999 ms', '1.23 s', '12.3 s', '1 min 5 s',
    ])
  })

  it('shows rates without insignificant digits', () => {
    expect([0, 0.5, 2.25, 12.44, 22, 340.4].map(rate)).toEqual(['0', '0.5', '2.25', '12.4', '22', '340'])
  })

  it('never rounds a value below 100 to 100 percent', () => {
    expect([null, 0, 3.14, 41.5, 99.7, 99.99, 100].map(percent)).toEqual(['–', '0 %', '3.1 %', '42 %', '99.7 %', '99.9 %', '100 %'])
  })

  it('shows money', () => {
    expect([null, 0, 0.0042, 3.5, 1234.5].map(dollars)).toEqual(['–', '$0', '$0.004', '$3.50', '$1,235'])
  })

  it('shows a duration in its two largest units', () => {
    expect([-1, 0, 59.9, 60, 3700, 90_000].map(lasting)).toEqual(['0 s', '0 s', '59 s', '1 min 0 s', '1 h 1 min', '1 d 1 h'])
  })

  it('shows an invalid timestamp as a dash', () => {
    expect(clock('soon')).toBe('–')
    expect(clock('2026-11-16T05:00:07Z')).toMatch(/^\d\d:\d\d:07$/)
  })

  it('shows names and counts as words', () => {
    expect(words('post_processing')).toBe('post processing')
    expect([plural(1, 'hour'), plural(2, 'hour')]).toEqual(['1 hour', '2 hours'])
  })
})
