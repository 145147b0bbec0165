// Checks and binding of grouped_route.
#include "common/grouped_route.h"

#include "bindings/route_args.h"

namespace splitserve {
namespace {

void grouped_route(TensorView weights, TensorView ids, TensorView places, TensorView starts,
                   TensorView logits, bool adds_up, Optional<TensorView> bias, int64_t groups,
                   int64_t chosen_groups, bool is_sigmoid, bool counts_two, double scaling) {
  const DeviceArgs args(logits, "logits");
  GroupedRouteParams params{};
  RouteParams& route = params.route;
  route = route_params(args, weights, ids, places, starts, logits, adds_up);
  if (bias.has_value()) {
    const TensorView view = *bias;
    params.bias = args(view, "bias").vector(kFloat32Type, route.experts).data<const float>();
  }
  SPLITSERVE_CHECK_VALUE(groups >= 1 && groups <= route.experts && route.experts % groups == 0,
                         "groups: " << groups << " do not divide the " << route.experts << " experts");
  SPLITSERVE_CHECK_VALUE(chosen_groups >= 1 && chosen_groups <= groups &&
                             chosen_groups * (route.experts / groups) >= route.chosen,
                         "chosen_groups: " << chosen_groups << " of " << groups << " do not hold "
                                           << route.chosen << " experts");
  SPLITSERVE_CHECK_VALUE(!counts_two || route.experts / groups >= 2, "groups: of one expert have no two");
  SPLITSERVE_CHECK_VALUE(scaling > 0.0 && scaling < 1e6, "scaling: must be positive and finite");
  params.groups = groups;
  params.chosen_groups = chosen_groups;
  params.is_sigmoid = is_sigmoid;
  params.counts_two = counts_two;
  params.scaling = static_cast<float>(scaling);
  SPLITSERVE_RUN(grouped_route, params, args.device());
}

}  // namespace
}  // namespace splitserve

SPLITSERVE_EXPORT(grouped_route, splitserve::grouped_route);
