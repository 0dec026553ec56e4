// Copies the .proto files into the package before npm packs it, and removes the copy after that.

import { cpSync, rmSync } from "node:fs";
import { fileURLToPath } from "node:url";

const copy = fileURLToPath(new URL("./proto", import.meta.url));
rmSync(copy, { recursive: true, force: true });
if (process.argv[2] !== "--remove") {
  const folder = fileURLToPath(new URL("../../proto/logitport", import.meta.url));
  cpSync(folder, `${copy}/logitport`, { recursive: true });
}
