/* order.cuh - the order of functions in the image.
 *
 * ptxas sorts functions by their mangled names. Functions that run one after the other should lie
 * together: code is fetched fastest while it fits 32 KB, slower up to 128 KB and slowest beyond.
 * The place of a function is worth 1 to 2 % on small models. So each function that is not inlined
 * is in a namespace of its own, whose name is the function's number here and comes first in the
 * mangled name. A function keeps its place when it is renamed. Functions without a number would
 * come before all numbered ones; the static functions of runtime/rt_*.h come after them.
 *
 *     CODE(void, compute_first, void) { ... }                     a function that has a number
 *     CODE_OF((int COLUMNS), void, run_stream, void) { ... }       a template: all its instances
 *     CODE_AHEAD(void, control_enter, struct control *c);         it is defined later
 *
 * Numbers have three digits, so that their order is that of the names; there are gaps for more.
 */
#ifndef QN_CUDA_ORDER_CUH
#define QN_CUDA_ORDER_CUH

#define CODE_AHEAD(type, name, ...)                                                                \
    inline namespace ORDER_##name {                                                                \
        __device__ __noinline__ type name(__VA_ARGS__);                                            \
    }
#define CODE(type, name, ...)                                                                      \
    CODE_AHEAD(type, name, __VA_ARGS__)                                                            \
    __device__ __noinline__ type ORDER_##name::name(__VA_ARGS__)

#define CODE_PARAMETERS(...) __VA_ARGS__
#define CODE_OF(parameters, type, name, ...)                                                       \
    inline namespace ORDER_##name {                                                                \
        template <CODE_PARAMETERS parameters> __device__ __noinline__ type name(__VA_ARGS__);      \
    }                                                                                              \
    template <CODE_PARAMETERS parameters>                                                          \
    __device__ __noinline__ type ORDER_##name::name(__VA_ARGS__)

/* The first order was that of the mangled names. */
#define ORDER_run_sample            o100
#define ORDER_step_items            o120
#define ORDER_control_ask           o130
#define ORDER_packed_next           o140
#define ORDER_role_loader           o150
#define ORDER_tile_finish           o160
#define ORDER_compute_drop          o170
#define ORDER_code_merge            o180
#define ORDER_code_mixed            o190
#define ORDER_code_step_one         o200
#define ORDER_code_whole            o210
#define ORDER_code_whole_one        o220
#define ORDER_code_whole_two        o225
#define ORDER_code_rows             o230
#define ORDER_code_last             o240
#define ORDER_code_first            o250
#define ORDER_code_other            o260
#define ORDER_control_drop          o300
#define ORDER_control_none          o310
#define ORDER_control_post          o320
#define ORDER_control_rows          o330
#define ORDER_control_void          o340
#define ORDER_packed_begin          o350
#define ORDER_role_control          o360
#define ORDER_choose_slowly         o370
#define ORDER_mask_logits           o375
#define ORDER_compute_first         o380
#define ORDER_control_ahead         o400
#define ORDER_control_batch         o410
#define ORDER_control_claim         o420
#define ORDER_control_enter         o430
#define ORDER_control_until         o440
#define ORDER_packed_linear         o450
#define ORDER_run_splitk_sum        o460
#define ORDER_compute_one_row       o470
#define ORDER_control_trigger       o480
#define ORDER_narrow_multiply       o490
#define ORDER_part_multiply         o495
#define ORDER_control_boundary      o500
#define ORDER_control_list_jit      o510
#define ORDER_control_rows_steady   o520
#define ORDER_control_between_polls o530
#define ORDER_attention_merge_long  o540
#define ORDER_gumbel                o550
#define ORDER_run_stream            o560
#define ORDER_lm_parts              o570
#define ORDER_role_ask              o580
#define ORDER_run_pack              o590
#define ORDER_heads_finish          o605
#define ORDER_step_run              o610
#define ORDER_rows_next             o620
#define ORDER_rows_open             o630
#define ORDER_rows_step             o640
#define ORDER_code_teams            o650
#define ORDER_unit_find             o660
#define ORDER_code_router_row       o670
#define ORDER_code_route            o680
#define ORDER_code_route_list       o685
#define ORDER_code_up_row           o690
#define ORDER_code_down_row         o700
#define ORDER_code_router_rows      o710
#define ORDER_code_up_gather        o720
#define ORDER_up_run_sets           o725
#define ORDER_code_down_gather      o730
#define ORDER_run_expert_gather     o733
#define ORDER_run_expert_sum        o736
#define ORDER_code_latent_heads     o740
#define ORDER_code_latent_pages     o745
#define ORDER_code_latent           o750
#define ORDER_code_latent_values    o760
#define ORDER_code_latent_merge     o770

#endif
