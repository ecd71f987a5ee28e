/* fingerprint.h - system_fingerprint: equal ones promise equal bits.
 *
 * It is a hash of what bits depend on: quern's version, instruction set or device, types, program,
 * config.json and the weights. Of large files the size and a sample of the bytes count. */
#ifndef QN_SERVER_FINGERPRINT_H
#define QN_SERVER_FINGERPRINT_H

#include "base/status.h" /* before quern.h, whose codes are the same */

#include "quern.h"

void fingerprint_make(const qn_engine_info *info, char text[24]);

#endif
