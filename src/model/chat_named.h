/* chat_named.h - the templates that are built in, for --chat-template NAME. */
#ifndef QN_MODEL_CHAT_NAMED_H
#define QN_MODEL_CHAT_NAMED_H

/* bos and eos apply where the directory names none. */
struct chat_named {
    const char *name, *bos, *eos, *program;
};

const struct chat_named *chat_named_find(const char *name); /* NULL: none */

#endif
