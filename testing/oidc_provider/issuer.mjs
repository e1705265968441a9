// A certified OpenID Connect provider on loopback, for tests.
//
// Reads its settings as JSON from the environment variable ISSUER: url, port, kid, redirectUri, tokenSeconds. Prints one
// line when it accepts connections. Each key ID has its own new key, so a restart with another ID rotates the key.

import { generateKeyPairSync } from 'node:crypto'
import Provider from 'oidc-provider'

const settings = JSON.parse(process.env.ISSUER)
const jwk = generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({ format: 'jwk' })

const provider = new Provider(settings.url, {
  jwks: { keys: [{ ...jwk, kid: settings.kid, use: 'sig', alg: 'RS256' }] },
  clients: [
    {
      client_id: 'caller',
      client_secret: 'a secret of the caller',
      grant_types: ['client_credentials'],
      redirect_uris: [],
      response_types: [],
    },
    {
      client_id: 'console',
      token_endpoint_auth_method: 'none',
      application_type: 'native',
      grant_types: ['authorization_code'],
      redirect_uris: [settings.redirectUri],
      response_types: ['code'],
    },
  ],
  conformIdTokenClaims: false,
  claims: { openid: ['sub'], profile: ['groups'] },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, groups: [`${id}s`] }) }),
  extraTokenClaims: () => ({ team: 'search' }),
  ttl: { ClientCredentials: settings.tokenSeconds },
  cookies: { keys: ['only for tests'] },
  features: {
    clientCredentials: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => undefined,
      getResourceServerInfo: (_, resource) => ({
        scope: '',
        audience: resource.replace('urn:audience:', ''),
        accessTokenFormat: 'jwt',
        jwt: { sign: { alg: 'RS256' } },
      }),
    },
  },
})

provider.listen(settings.port, '127.0.0.1', () => { console.log('ready') })
