// The event stream of the gateway, and whether the shown state is current.

import { parseSession, type Session } from './session'
import { parseHistory, parseState, type History, type State } from './state'

/** A state arrives every second. After this time without one, the page shows that its data is old. */
export const LATE_MS = 3_500
/** An open connection that is silent for this long is closed and opened again. */
export const DEAD_MS = 10_000

export type Link = 'connecting' | 'live' | 'reconnecting'

export interface Hearing {
  history: (history: History) => void
  state: (state: State) => void
  link: (link: Link, text: string) => void
  session: (session: Session) => void
  /** The stream was rejected after a session had begun, so the session has ended. */
  ended: () => void
}

export function linkText(link: Link, silentMs: number | null): string {
  if (link === 'live') return 'live'
  if (silentMs === null) return link
  return `reconnecting: last seen ${Math.floor(silentMs / 1000)} s ago`
}

export class Connection {
  private source: EventSource | null = null
  private heardAt: number | null = null
  private openedAt = 0
  private hasSession = false

  constructor(private readonly address: string, private readonly hearing: Hearing) {
    this.open()
    setInterval(() => { this.look() }, 500)
    document.addEventListener('visibilitychange', () => { this.look() })
  }

  private open(): void {
    this.source?.close()
    this.openedAt = performance.now()
    const source = new EventSource(this.address)
    this.source = source
    source.addEventListener('session', (event) => {
      const session = parseSession(event.data as string)
      if (session === null) return
      this.hasSession = true
      this.hearing.session(session)
    })
    source.addEventListener('history', (event) => {
      const history = parseHistory(event.data as string)
      if (history !== null) this.hearing.history(history)
    })
    source.addEventListener('state', (event) => {
      const state = parseState(event.data as string)
      if (state === null) return
      this.heardAt = performance.now()
      this.hearing.state(state)
      this.tell()
    })
    source.addEventListener('error', () => { this.tell() })
  }

  /** Browsers reconnect after most errors, but not after every response, and some connections fail silently. */
  private look(): void {
    const silentMs = performance.now() - Math.max(this.heardAt ?? 0, this.openedAt)
    const gone = this.source?.readyState === EventSource.CLOSED && silentMs > 1500
    if (gone && this.hasSession) {
      this.hasSession = false
      this.hearing.ended()
    }
    if (gone || silentMs > DEAD_MS) this.open()
    this.tell()
  }

  private tell(): void {
    const silentMs = this.heardAt === null ? null : performance.now() - this.heardAt
    const open = this.source?.readyState === EventSource.OPEN
    const link = silentMs === null ? 'connecting' : open && silentMs < LATE_MS ? 'live' : 'reconnecting'
    this.hearing.link(link, linkText(link, silentMs))
  }
}
