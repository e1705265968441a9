// Numbers and times as short text.

export const NONE = '–'

/** At most three digits, in a suitable unit. */
export function milliseconds(value: number | null): string {
  if (value === null) return NONE
  if (value >= 60_000) return lasting(value / 1000)
  if (value >= 10_000) return `${(value / 1000).toFixed(1)} s`
  if (value >= 1000) return `${(value / 1000).toFixed(2)} s`
  if (value >= 10) return `${Math.round(value)} ms`
  return value === 0 ? '0 ms' : `${value.toFixed(value >= 1 ? 1 : 2)} ms`
}

export function rate(value: number): string {
  if (value === 0) return '0'
  if (value >= 100) return String(Math.round(value))
  return String(Number(value.toFixed(value >= 10 ? 1 : 2)))
}

/** A value below 100 is never rounded to 100. */
export function percent(value: number | null): string {
  if (value === null) return NONE
  if (value < 100 && value >= 99.95) return '99.9 %'
  const digits = value > 0 && (value < 10 || (value > 99 && value < 100)) ? 1 : 0
  return `${Number(value.toFixed(digits))} %`
}

export function dollars(value: number | null): string {
  if (value === null) return NONE
  if (value === 0) return '$0'
  if (value >= 100) return `$${Math.round(value).toLocaleString('en-US')}`
  return `$${value.toFixed(value >= 1 ? 2 : 3)}`
}

/** A duration in its two largest units. */
export function lasting(seconds: number): string {
  const whole = Math.max(0, Math.floor(seconds))
  const days = Math.floor(whole / 86_400)
  const hours = Math.floor(whole / 3600) % 24
  const minutes = Math.floor(whole / 60) % 60
  if (days) return `${days} d ${hours} h`
  if (hours) return `${hours} h ${minutes} min`
  if (minutes) return `${minutes} min ${whole % 60} s`
  return `${whole} s`
}

/** Local time of day of a timestamp from the gateway. */
export function clock(moment: string): string {
  const at = new Date(moment)
  return Number.isNaN(at.getTime()) ? NONE : at.toLocaleTimeString('en-GB')
}

/** `post_processing` as `post processing`. */
export function words(name: string): string {
  return name.replaceAll('_', ' ')
}

export function plural(count: number, noun: string): string {
  return `${count.toLocaleString('en-US')} ${noun}${count === 1 ? '' : 's'}`
}
