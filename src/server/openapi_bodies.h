/* openapi_bodies.h - the conversations and tools of each API, as JSON Schemas for /openapi.json.
 * "$text" stands for the schema of a text, or of parts of the API's own type.
 *
 * The schemas cover everything that conversation_*.c and chat_use.c accept; these may refuse
 * more. */
#ifndef QN_SERVER_OPENAPI_BODIES_H
#define QN_SERVER_OPENAPI_BODIES_H

#define OBJECT(required, properties)                                                               \
    "{\"type\":\"object\",\"required\":[" required "],\"properties\":{" properties "}}"
/* An object whose `type` is this word. */
#define TYPED(type, required, properties)                                                          \
    OBJECT("\"type\"" required, "\"type\":{\"const\":\"" type "\"}," properties)
#define SOME(items)  "{\"type\":\"array\",\"minItems\":1,\"items\":" items "}"
#define ONE_OF(list) "{\"anyOf\":[" list "]}"
#define STRING       "{\"type\":\"string\"}"
#define ROLE(role)   "\"role\":{\"const\":\"" role "\"}"

#define FUNCTION     "\"name\":" STRING ",\"arguments\":{\"type\":[\"string\",\"object\",\"null\"]}"
#define SAID                                                                                       \
    "\"role\":{\"enum\":[\"system\",\"developer\",\"user\",\"assistant\"]},\"content\":$text"
#define MAY_BE_NULL "{\"anyOf\":[{\"type\":\"null\"},$text]}"

/* Messages of /v1/chat/completions and /tokenize: text, calls, results. */
#define CHAT_CALLS SOME(OBJECT("\"function\"", "\"function\":" OBJECT("\"name\"", FUNCTION)))
static const char chat_messages[] = SOME(ONE_OF(OBJECT("\"role\",\"content\"", SAID) "," OBJECT(
    "\"role\",\"tool_calls\"",
    ROLE("assistant") ",\"content\":" MAY_BE_NULL
                      ",\"tool_calls\":" CHAT_CALLS) "," OBJECT("\"role\",\"content\"",
                                                                ROLE(
                                                                    "tool") ",\"content\":$text")));

/* Anthropic's messages, a text or blocks. */
#define BLOCKS(kinds) "{\"anyOf\":[" STRING "," SOME(ONE_OF(kinds)) "]}"
#define TEXT_BLOCK    TYPED("text", ",\"text\"", "\"text\":" STRING)
#define RESULT_BLOCK  TYPED("tool_result", "", "\"content\":" MAY_BE_NULL)
#define THOUGHT_BLOCK TYPED("thinking", ",\"thinking\"", "\"thinking\":" STRING)
#define HIDDEN_BLOCK  TYPED("redacted_thinking", "", "\"data\":{}")
#define CALL_BLOCK                                                                                 \
    TYPED("tool_use", ",\"name\"",                                                                 \
          "\"name\":" STRING ",\"input\":{\"type\":[\"object\",\"string\",\"null\"]}")
#define USER_BLOCKS BLOCKS(TEXT_BLOCK "," RESULT_BLOCK)
#define MODEL_BLOCKS                                                                               \
    "{\"anyOf\":[" STRING ",{\"type\":\"array\",\"items\":" ONE_OF(                                \
        TEXT_BLOCK "," THOUGHT_BLOCK "," HIDDEN_BLOCK "," CALL_BLOCK) "}]}"
static const char block_messages[] =
    SOME(ONE_OF(OBJECT("\"role\",\"content\"", ROLE("user") ",\"content\":" USER_BLOCKS) "," OBJECT(
        "\"role\",\"content\"", ROLE("assistant") ",\"content\":" MODEL_BLOCKS)));

/* The input of /v1/responses, a text or items. */
static const char input_items[] = "{\"anyOf\":[" STRING "," SOME(
    ONE_OF(OBJECT("\"role\",\"content\"", "\"type\":{\"const\":\"message\"}," SAID) "," TYPED(
        "function_call", ",\"name\"",
        FUNCTION) "," TYPED("function_call_output", ",\"output\"",
                            "\"output\":$text") "," TYPED("reasoning", "", "\"summary\":{}"))) "]}";

/* Tools. Two of the APIs leave out tools of other types. */
#define TOOL(type, parameters)                                                                     \
    OBJECT("\"name\"", type "\"name\":" STRING ",\"description\":{\"type\":[\"string\",\"null\"]}" \
                            ",\"" parameters "\":{\"type\":[\"object\",\"null\"]}")
#define NOT_OF_TYPE(type)                                                                          \
    OBJECT("\"type\"", "\"type\":{\"type\":\"string\",\"not\":{\"const\":\"" type "\"}}")
static const char chat_tool[] = OBJECT(
    "\"function\"", "\"type\":{\"enum\":[\"function\",null]},\"function\":" TOOL("", "parameters"));
static const char block_tool[] = ONE_OF(
    TOOL("\"type\":{\"enum\":[\"custom\",null]},", "input_schema") "," NOT_OF_TYPE("custom"));
static const char item_tool[] = ONE_OF(
    TYPED("function", ",\"name\"",
          "\"name\":" STRING ",\"description\":{\"type\":[\"string\",\"null\"]},\"parameters\":{"
          "\"type\":[\"object\",\"null\"]}") "," NOT_OF_TYPE("function"));

#undef OBJECT
#undef TYPED
#undef SOME
#undef ONE_OF
#undef STRING
#undef ROLE
#undef FUNCTION
#undef SAID
#undef MAY_BE_NULL
#undef CHAT_CALLS
#undef BLOCKS
#undef TEXT_BLOCK
#undef RESULT_BLOCK
#undef THOUGHT_BLOCK
#undef HIDDEN_BLOCK
#undef CALL_BLOCK
#undef USER_BLOCKS
#undef MODEL_BLOCKS
#undef TOOL
#undef NOT_OF_TYPE
#endif
