/* SPDX-License-Identifier: Apache-2.0
 * Scalar functions of the element-wise operators, over REAL: included once per floating-point type, with
 *     REAL   the type            M(f)   libm's function of that type, e.g. tanhf for tanh
 *     FN(x)  a name per type     INV_SCALAR   qualifiers (static inline, or a device function's)
 *     V(f)   where given, a form of libm's exp, expm1, tanh and erf for vector code (ops/base/float_math.h)
 * May call only what libm and CUDA both have. No include guard, on purpose.
 *
 * Names: f is the forward function, f_dx its derivative from the input, f_dy from the output, f_inv its inverse.
 * a[0], a[1] are the attributes in the order of ops/elementwise/elementwise.inc. NaN goes through every forward
 * function. */
#ifndef INV_SCALAR
#define INV_SCALAR static inline
#endif
#ifndef V
#define V(f) M(f)
#endif
#define R(c) ((REAL)(c))
#define UN(name, expr)                              \
    INV_SCALAR REAL FN(name)(REAL x, const REAL *a) \
    {                                               \
        (void)a;                                    \
        return (expr);                              \
    }
#define DY(name, expr)                              \
    INV_SCALAR REAL FN(name)(REAL y, const REAL *a) \
    {                                               \
        (void)a;                                    \
        return (expr);                              \
    }

/* --- rectifiers and their kin --- */
UN(relu, x < 0 ? R(0) : x)
DY(relu_dy, y > 0 ? R(1) : R(0))

UN(leaky_relu, x < 0 ? a[0] * x : x)
DY(leaky_relu_dy, y > 0 ? R(1) : a[0])
DY(leaky_relu_inv, y < 0 ? y / a[0] : y)

UN(thresholded_relu, x <= a[0] ? R(0) : x)
DY(thresholded_relu_dy, y != 0 ? R(1) : R(0))

UN(elu, x < 0 ? a[0] * V(expm1)(x) : x)
UN(elu_dx, x > 0 ? R(1) : a[0] * V(exp)(x))
DY(elu_dy, y > 0 ? R(1) : y + a[0])
DY(elu_inv, y < 0 ? M(log1p)(y / a[0]) : y)

/* a = {alpha, gamma} */
UN(selu, x < 0 ? a[1] * (a[0] * V(expm1)(x)) : a[1] * x)
UN(selu_dx, x > 0 ? a[1] : a[1] * a[0] * V(exp)(x))
DY(selu_dy, y > 0 ? a[1] : y + a[1] * a[0])
DY(selu_inv, y < 0 ? M(log1p)(y / (a[1] * a[0])) : y / a[1])

UN(celu, x < 0 ? a[0] * V(expm1)(x / a[0]) : x)
UN(celu_dx, x > 0 ? R(1) : V(exp)(x / a[0]))
DY(celu_dy, y > 0 ? R(1) : y / a[0] + R(1))
DY(celu_inv, y < 0 ? a[0] * M(log1p)(y / a[0]) : y)

/* a = {min, max} */
UN(clip_range, x<a[0] ? a[0] : x> a[1] ? a[1] : x)
UN(saturate, x<a[0] ? a[0] : x> a[1] ? a[1] : x)

/* a = {alpha, beta} */
UN(hard_sigmoid, a[0] * x + a[1] < 0 ? R(0) : a[0] * x + a[1] > 1 ? R(1) : a[0] * x + a[1])
DY(hard_sigmoid_dy, y > 0 && y < 1 ? a[0] : R(0))

UN(hard_swish, x <= -3 ? x * R(0) : x >= 3 ? x : x * (x + 3) / 6) /* NaN at -infinity, as the formula says */
UN(hard_swish_dx, x <= -3 ? R(0) : x >= 3 ? R(1) : (2 * x + 3) / 6)

/* a = {lambd, bias} */
UN(shrink, x<-a[0] ? x + a[1] : x> a[0] ? x - a[1] : x != x ? x : R(0))

/* --- smooth activations --- */
UN(tanh, V(tanh)(x))
DY(tanh_dy, R(1) - y * y)
DY(tanh_inv, M(atanh)(y))

/* exp of what is not positive does not overflow. */
INV_SCALAR REAL FN(sigmoid)(REAL x, const REAL *a)
{
    const REAL e = V(exp)(-M(fabs)(x));
    (void)a;
    return (x < 0 ? e : R(1)) / (R(1) + e);
}
DY(sigmoid_dy, y *(R(1) - y))
DY(sigmoid_inv, M(log)(y / (R(1) - y)))

UN(softplus, x > 0 ? x + M(log1p)(V(exp)(-x)) : M(log1p)(V(exp)(x)))
DY(softplus_dy, -V(expm1)(-y))
DY(softplus_inv, y > 1 ? y + M(log1p)(-V(exp)(-y)) : M(log)(V(expm1)(y)))

UN(softsign, x / (R(1) + M(fabs)(x)))
DY(softsign_dy, (R(1) - M(fabs)(y)) * (R(1) - M(fabs)(y)))
DY(softsign_inv, y / (R(1) - M(fabs)(y)))

UN(erf, V(erf)(x))
UN(erf_dx, R(1.12837916709551257390) * V(exp)(-x * x))

/* 0.5 x (1 + erf(x / sqrt 2)) */
UN(gelu_erf, R(0.5) * x * (R(1) + V(erf)(x * R(0.70710678118654752440))))
/* clang-format off */
UN(gelu_erf_dx, R(0.5) * (R(1) + V(erf)(x * R(0.70710678118654752440))) +
                    x * R(0.39894228040143267794) * V(exp)(R(-0.5) * x * x))
/* clang-format on */

/* 0.5 x (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3) */
INV_SCALAR REAL FN(gelu_u)(REAL x) { return R(0.79788456080286535588) * (x + R(0.044715) * x * x * x); }
UN(gelu_tanh, R(0.5) * x * (R(1) + V(tanh)(FN(gelu_u)(x))))
INV_SCALAR REAL FN(gelu_tanh_dx)(REAL x, const REAL *a)
{
    REAL t = V(tanh)(FN(gelu_u)(x)), du = R(0.79788456080286535588) * (R(1) + R(3 * 0.044715) * x * x);
    (void)a;
    return R(0.5) * (R(1) + t) + R(0.5) * x * (R(1) - t * t) * du;
}

UN(mish, x *V(tanh)(FN(softplus)(x, a)))
INV_SCALAR REAL FN(mish_dx)(REAL x, const REAL *a)
{
    REAL t = V(tanh)(FN(softplus)(x, a));
    return t + x * (R(1) - t * t) * FN(sigmoid)(x, a);
}

/* x sigmoid(alpha x) */
UN(swish, x *FN(sigmoid)(a[0] * x, a))
INV_SCALAR REAL FN(swish_dx)(REAL x, const REAL *a)
{
    REAL s = FN(sigmoid)(a[0] * x, a);
    return s + a[0] * x * s * (R(1) - s);
}

/* --- powers, exponentials, roots --- */
UN(exp, V(exp)(x))
DY(exp_dy, y)
DY(exp_inv, M(log)(y))

UN(log, M(log)(x))
DY(log_dy, V(exp)(-y))
DY(log_inv, V(exp)(y))

UN(sqrt, M(sqrt)(x))
DY(sqrt_dy, R(0.5) / y)
DY(sqrt_inv, y *y)

UN(reciprocal, R(1) / x)
DY(reciprocal_dy, -y *y)
DY(reciprocal_inv, R(1) / y)

/* --- trigonometric and hyperbolic --- */
UN(sin, M(sin)(x))
UN(sin_dx, M(cos)(x))
UN(cos, M(cos)(x))
UN(cos_dx, -M(sin)(x))
UN(tan, M(tan)(x))
DY(tan_dy, R(1) + y * y)
UN(asin, M(asin)(x))
UN(asin_dx, R(1) / M(sqrt)(R(1) - x * x))
UN(acos, M(acos)(x))
UN(acos_dx, R(-1) / M(sqrt)(R(1) - x * x))
UN(atan, M(atan)(x))
UN(atan_dx, R(1) / (R(1) + x * x))
UN(sinh, M(sinh)(x))
UN(sinh_dx, M(cosh)(x))
DY(sinh_dy, M(sqrt)(R(1) + y * y))
DY(sinh_inv, M(asinh)(y))
UN(cosh, M(cosh)(x))
UN(cosh_dx, M(sinh)(x))
UN(asinh, M(asinh)(x))
UN(asinh_dx, R(1) / M(sqrt)(R(1) + x * x))
DY(asinh_dy, R(1) / M(cosh)(y))
DY(asinh_inv, M(sinh)(y))
UN(acosh, M(acosh)(x))
DY(acosh_dy, R(1) / M(sinh)(y))
UN(atanh, M(atanh)(x))
UN(atanh_dx, R(1) / (R(1) - x * x))

/* --- sign and rounding --- */
UN(neg, -x)
UN(abs, M(fabs)(x))
UN(sign, x > 0 ? R(1) : x < 0 ? R(-1) : x)
UN(floor, M(floor)(x))
UN(ceil, M(ceil)(x))
UN(round_even, M(rint)(x)) /* the rounding mode is never changed: halves go to even */

/* The nearest number of a small floating-point type, halves to even. a = {type, saturate}: beyond the largest number
 * that one, or infinity or NaN, whichever the type has. float8e8m0: the power of two above (saturate 1), below (2) or
 * nearest (3); float4e2m1, float6e2m3 and float6e3m2, which have neither, always saturate, and NaN becomes 0. */
INV_SCALAR REAL FN(round_small)(REAL x, const REAL *a)
{
    const int type = (int)a[0], how = (int)a[1];
    const int finite = type == INV_F4E2M1 || type == INV_F6E2M3 || type == INV_F6E3M2;
    const int wide = type == INV_F8E5M2 || type == INV_F8E5M2FNUZ;
    const int mantissa = type == INV_F4E2M1 ? 1 : wide || type == INV_F6E3M2 ? 2 : 3;
    const int least = type == INV_F4E2M1 || type == INV_F6E2M3 ? 0
                      : type == INV_F6E3M2                     ? -2
                      : type == INV_F8E4M3FN                   ? -6
                      : type == INV_F8E4M3FNUZ                 ? -7
                      : type == INV_F8E5M2                     ? -14
                                                               : -15;
    const REAL most = type == INV_F4E2M1     ? R(6)
                      : type == INV_F6E2M3   ? R(7.5)
                      : type == INV_F6E3M2   ? R(28)
                      : wide                 ? R(57344)
                      : type == INV_F8E4M3FN ? R(448)
                                             : R(240);
    int e = 0;
    if (x != x) return finite ? R(0) : x;
    const REAL size = M(fabs)(x), fraction = M(frexp)(size, &e);
    if (type == INV_F8E8M0) {
        if (fraction == R(0.5) || how == 2 || (how == 3 && fraction < R(0.75))) e--;
        if (size == 0 || e < -127) e = -127;
        return x < 0 ? R(NAN) : M(ldexp)(R(1), size > R(1.7014118e38) || e > 127 ? 127 : e);
    }
    if (size > 2 * most) e = 0; /* and infinity: it has no exponent */
    e = (e - 1 < least ? least : e - 1) - mantissa;
    const REAL near = size > 2 * most ? size : M(ldexp)(M(rint)(M(ldexp)(size, -e)), e);
    const REAL beyond = how != 0 || finite ? most : type == INV_F8E5M2 ? R(INFINITY) : R(NAN);
    return M(copysign)(near > most ? beyond : near, x);
}

#undef UN
#undef DY

/* --- two operands --- */
#define BI(name, expr) \
    INV_SCALAR REAL FN(name)(REAL x, REAL z) { return (expr); }
BI(add, x + z)
BI(sub, x - z)
BI(mul, x *z)
BI(div, x / z)
BI(pow, M(pow)(x, z))
BI(max, x > z || x != x ? x : z)
BI(min, x < z || x != x ? x : z)
BI(fmod, M(fmod)(x, z))
/* Remainder with the divisor's sign, zero too. */
INV_SCALAR REAL FN(pymod)(REAL x, REAL z)
{
    REAL r = M(fmod)(x, z);
    return r == 0 ? M(copysign)(r, z) : (r < 0) != (z < 0) ? r + z : r;
}
BI(prelu, x < 0 ? x * z : x)
BI(prelu_inv, x < 0 ? x / z : x)       /* y, slope */
BI(prelu_dslope, z > 0 ? R(0) : x * z) /* gy, x */
#undef BI

/* --- three operands, the first is the output's gradient --- */
#define TRI(name, expr) \
    INV_SCALAR REAL FN(name)(REAL g, REAL x, REAL z) { return (expr); }
TRI(prelu_dx, x > 0 ? g : g * z)                         /* gy, x, slope */
TRI(div_db, -g *x / z)                                   /* gy, y, b */
TRI(pow_dx, z == 0 ? R(0) : g * z * M(pow)(x, z - R(1))) /* gy, x, exponent */
TRI(pow_de, x == 0 ? R(0) : g * z * M(log)(x))           /* gy, x, y */
#undef TRI
#undef R
