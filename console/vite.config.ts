// Where does what is built go, and under which names? Names without hashes, so that what is committed stays comparable;
// the gateway tells browsers by ETag when something has changed.
import { defineConfig } from 'vite'

export default defineConfig({
  base: './',
  build: {
    outDir: '../src/headgate/console/assets',
    emptyOutDir: true,
    target: 'es2022',
    modulePreload: false,
    assetsInlineLimit: 0,
    rolldownOptions: {
      output: {
        entryFileNames: 'console.js',
        assetFileNames: 'console[extname]',
      },
    },
  },
})
