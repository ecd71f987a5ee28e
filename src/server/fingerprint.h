/* fingerprint.h - system_fingerprint: equal fingerprints promise equal bits.
 *
 * It is a hash of what bits depend on: quern's version, instruction set or device, types, program,
 * config.json and the weights. Of large files only the size and a sample of bytes are hashed. */
#ifndef QN_SERVER_FINGERPRINT_H
#define QN_SERVER_FINGERPRINT_H

#include "base/status.h" /* before quern.h, whose codes are the same */

#include "quern.h"

void fingerprint_make(const qn_engine_info *info, char text[24]);

#endif
